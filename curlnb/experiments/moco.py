"""MoCo-v2 with hard and with mixed negatives, from a queue of past keys.

Source: robinson2021, Appendix C.1 and Figure 6.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curlnb import losses
from curlnb.data import augment
from curlnb.experiments import images, own_parts
from curlnb.experiments.image_data import ImageData, digest
from curlnb.experiments.images import Architecture
from curlnb.experiments.own_parts import Objective
from curlnb.models.encoders import SimCLR, momentum_update
from curlnb.runs.environment import limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Accelerated, train


@dataclass(frozen=True)
class Queue:
    """Negatives from a queue of past keys, and the loss against them.

    queue: K, the N of the loss; momentum: of the key network, in [0, 1). mix_hardest, mixed,
    mixed_with_query: MoCHi's N, s and s' (see `mixed_negatives`), 0 for none. tau_plus, beta,
    temperature: as in `losses.contrastive_loss`. objective: None for that loss, or your own
    (`own_parts.Objective`), which takes none of these three and divides by a temperature itself.
    ValueError for settings that cannot work together.
    """

    queue: int = 4096
    momentum: float = 0.99
    mix_hardest: int = 0
    mixed: int = 0
    mixed_with_query: int = 0
    tau_plus: float = 0.0
    beta: float = 0.0
    temperature: float = 0.2
    objective: Objective | None = None

    def __post_init__(self) -> None:
        mixed, hardest = self.mixed + self.mixed_with_query, self.mix_hardest
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum is {self.momentum}: the key network needs one in [0, 1); 1 would never "
                "move it"
            )
        if min(hardest, self.mixed, self.mixed_with_query) < 0 or (
            mixed and not 1 <= hardest <= self.queue
        ):
            raise ValueError(
                f"mix_hardest is {hardest}: {self.mixed} + {self.mixed_with_query} negatives are "
                f"mixed of 1 to {self.queue} keys of the queue"
            )
        if self.objective is not None:
            own_parts.check_bare(self, ("tau_plus", "beta", "temperature"))


@dataclass(frozen=True)
class Crops:
    """The random crops of the augmentation.

    size: in pixels; crop_low: the least share of an image's area in a crop, in (0, 1].
    """

    size: int = 32
    crop_low: float = 0.08


class MoCo(nn.Module):
    """The query network, its momentum copy that makes the keys, and the queue.

    A checkpoint holds all three. keys: [K, d] unit vectors, random at first; owner: [K] the image
    of each key, -1 at first; place: 0-dim, the position of the next key. The key network's
    parameters take no gradient; `encoders.momentum_update` moves them.
    """

    keys: Tensor
    owner: Tensor
    place: Tensor

    def __init__(self, query: SimCLR, queue: int, dim: int) -> None:
        super().__init__()
        self.query = query
        self.key = copy.deepcopy(query).requires_grad_(False)
        self.register_buffer("keys", F.normalize(torch.randn(queue, dim), dim=1))
        self.register_buffer("owner", torch.full((queue,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: Tensor, owner: Tensor) -> None:
        """Overwrite the oldest keys of the queue by keys [B, d] of images owner [B], cyclically."""
        at = (self.place + torch.arange(len(keys), device=keys.device)) % len(self.keys)
        self.keys.index_copy_(0, at, keys.to(self.keys.dtype))
        self.owner.index_copy_(0, at, owner)
        self.place.add_(len(keys)).remainder_(len(self.keys))


@experiment(name="moco.moco_v2", data=digest)
def moco_v2(
    run: Run,
    *,
    seed: int,
    data: ImageData = ImageData(),
    architecture: Architecture = Architecture(bn_groups=8),
    loss: Queue = Queue(),
    crops: Crops = Crops(),
    optimisation: Accelerated = Accelerated(),
    optimizer: str = "adam",
    cosine: bool = False,
) -> dict[str, Any]:
    """Train an encoder against a queue of K keys from earlier batches, and evaluate it.

    The keys' images are shuffled, so that a query and its key are in different parts of the batch
    for batch norm's statistics (`bn_groups`): otherwise the statistics reveal which key is whose.
    With 1 group the statistics are those of the whole batch for both, and shuffling cannot help.
    optimizer, cosine: see `training.train`. Returns what `images.evaluate` does and, of the last
    epoch, loss, clamped, guessed (the share of queries that are closer to their key than to all of
    the queue) and own (the share whose own image is in the queue). ValueError for a queue smaller
    than a batch.
    """
    pictures, labelled, held_out = data.load(run.device)
    optimisation, loss = limited(optimisation, batch=4), limited(loss, queue=8, mix_hardest=8)
    if loss.queue < optimisation.batch:
        least = optimisation.batch
        raise ValueError(
            f"queue is {loss.queue}, smaller than a batch of {least}, which would overwrite "
            f"itself: give it {least} or more"
        )
    channels, height, width = pictures.images.shape[1:]
    groups = limited(architecture, bn_groups=2).bn_groups or 1
    query = images.network(architecture.encoder, channels, groups, crops.size).to(run.device)
    model = MoCo(query, loss.queue, dimension(query)).to(run.device)
    generator = torch.Generator(run.device).manual_seed(seed)

    def view(samples: Tensor) -> Tensor:
        parameters = augment.draw(
            len(samples),
            height,
            width,
            generator,
            scale=(crops.crop_low, 1.0),
            colour=channels == 3,
        )
        views = augment.apply(pictures.images.index_select(0, samples), parameters, size=crops.size)
        return views.contiguous(memory_format=torch.channels_last)

    embed, embed_key = (
        optimisation.accelerate(part, run)
        for part in (lambda x: model.query(x)[1], lambda x: model.key(x)[1])
    )

    def step(samples: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        momentum_update(model.key, model.query, 1 - loss.momentum)
        q = embed(view(samples))
        order = torch.randperm(len(samples), generator=generator, device=samples.device)
        with torch.no_grad():
            shuffled = embed_key(view(samples[order]))
            k = torch.empty_like(shuffled).index_copy_(0, order, shuffled)
        pos, neg = query_key_similarities(q, k, model.keys)
        more = mixed_negatives(
            q.detach(),
            neg.detach(),
            model.keys,
            loss.mix_hardest,
            loss.mixed,
            loss.mixed_with_query,
            generator,
        )
        every = neg if more is None else torch.cat([neg, query_key_similarities(q, k, more)[1]], 1)
        if loss.objective is None:
            each, clamped = losses.loss_and_clamped(
                pos, every, temperature=loss.temperature, tau_plus=loss.tau_plus, beta=loss.beta
            )
        else:
            each, clamped = own_parts.losses_of(loss.objective, pos, every), pos.new_zeros(())
        seen = {
            "guessed": (pos > neg.amax(1)).float().mean(),
            "own": (model.owner == samples[:, None]).any(1).float().mean(),
            "clamped": clamped,
        }
        model.enqueue(k, samples)
        return each.mean(), seen

    log = train(
        run,
        model,
        step,
        optimisation,
        samples=len(pictures),
        seed=seed,
        generator=generator,
        optimizer=optimizer,
        cosine=cosine,
    )
    return images.evaluate(model.query.encoder, labelled, held_out, generator) | images.last(log)


def dimension(network: SimCLR) -> int:
    """The length of a network's projections."""
    return [layer for layer in network.head.modules() if isinstance(layer, nn.Linear)][
        -1
    ].out_features


def query_key_similarities(q: Tensor, k: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """pos [B], of each query and its key, and neg [B, K], of each query and other keys.

    q, k: [B, d] unit vectors; keys: [K, d] of the queue, or [B, K, d] for each query. Gradients
    reach only the queries. Computed in float32 at least, also under autocast.
    """
    k, keys = k.detach(), keys.detach().clone()  # the queue is written to before the backward pass
    with torch.autocast(q.device.type, enabled=False):
        neg = q @ keys.T if keys.dim() == 2 else torch.einsum("bd,bkd->bk", q, keys)
        return (q * k).sum(1), neg


def mixed_negatives(
    q: Tensor,
    neg: Tensor,
    keys: Tensor,
    hardest: int,
    mixed: int,
    mixed_with_query: int,
    generator: torch.Generator,
) -> Tensor | None:
    """Negatives mixed from a query's hardest keys, [B, mixed + mixed_with_query, d]; None for none.

    The idea of MoCHi (Kalantidis et al. 2020): of each query q [B, d] the `hardest` keys by neg [B,
    K]; `mixed` points a n_i + (1 - a) n_j between two of them, a uniform in [0, 1], and
    `mixed_with_query` points b q + (1 - b) n_j, b uniform in [0, 1/2], so that a key has the larger
    weight; all scaled to unit length. No gradient flows through them.
    """
    if not mixed + mixed_with_query:
        return None
    top = neg.topk(hardest, 1).indices  # [B, hardest]
    count, device = len(q), q.device

    def draw(n: int) -> Tensor:
        return keys[  # [B, n, d]
            top.gather(1, torch.randint(hardest, (count, n), generator=generator, device=device))
        ]

    a = torch.rand(count, mixed, 1, generator=generator, device=device)
    b = torch.rand(count, mixed_with_query, 1, generator=generator, device=device) / 2
    between = torch.lerp(draw(mixed), draw(mixed), a)
    towards = torch.lerp(draw(mixed_with_query), q[:, None].expand(-1, mixed_with_query, -1), b)
    return F.normalize(torch.cat([between, towards], 1), dim=2)
