"""Networks: encoders of images, sentences and graphs, an agent's, and four that are committed
trained.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curlnb.models.encoders import SimCLR


def pretrained(name: str) -> "SimCLR":
    """A network that was trained at night and is committed, by its objective: "biased", "debiased",
    "unbiased" or "hard".

    See `curlnb.models.committed.pretrained`, which needs the extra `notebooks`, as `encoders` does
    not.
    """
    from curlnb.models import committed

    return committed.pretrained(name)
