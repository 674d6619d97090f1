"""Networks: encoders of images, sentences and graphs, an agent, and four trained encoders."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curlnb.models.encoders import SimCLR


def pretrained(name: str) -> "SimCLR":
    """A trained encoder that comes with the repository, by its objective.

    name: "biased", "debiased", "unbiased" or "hard"; see `curlnb.models.committed.pretrained`,
    which, unlike `encoders`, needs the extra `notebooks`.
    """
    from curlnb.models import committed

    return committed.pretrained(name)
