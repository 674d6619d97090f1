"""Contrastive multiview coding of images: lightness against colour, biased and debiased.

Source: chuang2020, Section 5.2 and Table 1.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curlnb import evaluation, losses
from curlnb.data import augment, datasets
from curlnb.experiments import images, moco
from curlnb.experiments.image_data import ImageData, digest, knn_and_probe
from curlnb.experiments.moco import Crops
from curlnb.experiments.own_parts import MakeEncoder
from curlnb.runs.environment import limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Accelerated, train

# of a memory bank's entries, in the code released with contrastive multiview coding
BANK_MOMENTUM = 0.5
# (t, tau+) at which the trained model's floor is measured
FLOORS = tuple((t, tau) for t in (0.07, 0.2, 0.5) for tau in (0.005, 0.01, 0.1))

# sRGB to XYZ (IEC 61966-2-1); its rows sum to the white point D65 of the 2-degree observer.
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = tuple(sum(row) for row in TO_XYZ)
# The extremes of L, a and b over the sRGB cube, which take each channel to [-1, 1].
LOWEST, HIGHEST = (0.0, -86.18, -107.86), (100.0, 98.23, 94.48)


def lab(rgb: Tensor) -> Tensor:
    """CIE 1976 L*a*b* of sRGB images, white D65.

    rgb: float [n, 3, h, w] in [0, 1]; returns that shape, L in [0, 100]. Computed in float32 at
    least, also under autocast: the cube root near black is steep.
    """
    with torch.autocast(rgb.device.type, enabled=False):
        rgb = rgb.to(torch.promote_types(rgb.dtype, torch.float32))
        linear = torch.where(
            rgb > 0.04045, ((rgb.clamp_min(0.04045) + 0.055) / 1.055) ** 2.4, rgb / 12.92
        )
        # numbers, not a matrix: copying one to the device would wait for it
        rows = zip(TO_XYZ, WHITE, strict=True)
        xyz = torch.stack(
            [
                sum(  # type: ignore[misc]
                    linear[:, c] * (weight / white) for c, weight in enumerate(row)
                )
                for row, white in rows
            ],
            1,
        )
        edge = 6 / 29
        f = torch.where(
            xyz > edge**3, xyz.clamp_min(edge**3) ** (1 / 3), xyz / (3 * edge**2) + 4 / 29
        )
        x, y, z = f.unbind(1)
        return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


def views(rgb: Tensor) -> tuple[Tensor, Tensor]:
    """The two views of images [n, 3, h, w] in [0, 1]: lightness and colour.

    Returns L [n, 1, h, w] and ab [n, 2, h, w], each channel roughly in [-1, 1], in channels-last
    layout.
    """
    extremes = zip(lab(rgb).unbind(1), LOWEST, HIGHEST, strict=True)
    scaled = torch.stack(
        [(channel - (low + high) / 2) / ((high - low) / 2) for channel, low, high in extremes], 1
    )
    light, colour = (
        view.contiguous(memory_format=torch.channels_last)
        for view in (scaled[:, :1], scaled[:, 1:])
    )
    return light, colour


class Multiview(nn.Module):
    """An encoder and head for each view, and a bank of embeddings of all training images.

    A checkpoint holds all of it. bank: [2, n, d] unit vectors, of L and of ab, random at first; n =
    0 without a bank.
    """

    bank: Tensor

    def __init__(self, encoder: str | MakeEncoder, bank: int = 0, size: int = 32) -> None:
        super().__init__()
        self.light, self.colour = (
            images.network(encoder, channels, size=size) for channels in (1, 2)
        )
        dim = moco.dimension(self.light)
        self.register_buffer("bank", F.normalize(torch.randn(2, bank, dim), dim=2))

    def forward(self, light: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
        """Projections [n, d] of both views."""
        return self.light(light)[1], self.colour(colour)[1]

    @torch.no_grad()
    def remember(self, samples: Tensor, *z: Tensor) -> None:
        """Move the bank's entries of images `samples` [B] half way to their new embeddings.

        z: [B, d] of each view.
        """
        for view, new in enumerate(z):
            old = self.bank[view].index_select(0, samples)
            self.bank[view].index_copy_(
                0, samples, F.normalize(torch.lerp(new, old, BANK_MOMENTUM), dim=1)
            )


class Features(nn.Module):
    """The features of both encoders side by side: images [n, 3, h, w] in [0, 1] -> [n, 2 d].

    Each half has unit length.
    """

    def __init__(self, model: Multiview) -> None:
        super().__init__()
        self.model = model

    def forward(self, rgb: Tensor) -> Tensor:
        light, colour = views(rgb)
        return torch.cat([self.model.light(light)[0], self.model.colour(colour)[0]], 1)


@dataclass(frozen=True)
class Bank:
    """Where negatives come from, and the loss against them.

    bank: False takes the other images of the batch; True a memory bank of all training images, of
    which `negatives` are drawn for each anchor, with replacement and never its own image.
    negatives: None without a bank, else a number. tau_plus: the class prior of the debiased loss in
    [0, 1), 0 for the biased one, M = 1; temperature > 0. ValueError for negatives that do not fit
    `bank`.
    """

    bank: bool = False
    negatives: int | None = None
    tau_plus: float = 0.0
    temperature: float = 0.07

    def __post_init__(self) -> None:
        if self.bank != (self.negatives is not None):
            needed = "a bank needs a number of negatives, a batch takes all it has (None)"
            raise ValueError(f"negatives is {self.negatives!r} with bank={self.bank}: {needed}")


@experiment(name="multiview.cmc", data=digest)
def cmc(
    run: Run,
    *,
    seed: int,
    data: ImageData = ImageData(),
    encoder: str | MakeEncoder = "cnn",
    loss: Bank = Bank(),
    crops: Crops = Crops(crop_low=0.2),
    optimisation: Accelerated = Accelerated(),
    optimizer: str = "adam",
    milestones: list[float] | None = None,
) -> dict[str, Any]:
    """Train an encoder of lightness and one of colour on each other's view, and probe both.

    data: an image set with colour. encoder: as in `images.Architecture`, made once for 1 channel
    and once for 2. Both views come from one crop; the only other augmentation is flips. optimizer,
    milestones: see `training.train`. Returns linear, linear_top5 and knn (shares, of the evaluation
    split, on both encoders' features side by side), linear_light and linear_colour (of one encoder
    alone), loss and clamped (share of anchors on the floor, both directions) of the last epoch,
    aligned (mean similarity of an image's two views) and floor (list, over FLOORS: the trained
    model's anchors on the floor at other t and tau+, in batches of the evaluation split).
    ValueError for a grey data set.
    """
    pictures, labelled, held_out = data.load(run.device)
    channels, height, width = pictures.images.shape[1:]
    if channels != 3:
        raise ValueError(
            f"{pictures.name} has {channels} channel: contrastive multiview coding needs colour, "
            "three channels"
        )
    optimisation, loss, crops = (
        limited(optimisation, batch=4),
        limited(loss, negatives=8),
        limited(crops, size=64),
    )
    model = Multiview(encoder, len(pictures) if loss.bank else 0, crops.size).to(run.device)
    generator = torch.Generator(run.device).manual_seed(seed)
    embed = optimisation.accelerate(model, run)

    def step(samples: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        parameters = augment.draw(
            len(samples),
            height,
            width,
            generator,
            scale=(crops.crop_low, 1.0),
            colour=False,
            blur=False,
        )
        cut = augment.apply(
            pictures.images.index_select(0, samples),
            parameters,
            size=crops.size,
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
        )
        light, colour = embed(*views(cut))
        if loss.negatives:
            scores = from_bank(light, colour, model.bank, samples, loss.negatives, generator)
            model.remember(samples, light.detach(), colour.detach())
        else:
            scores = in_batch(light, colour)
        both = [
            losses.loss_and_clamped(*each, temperature=loss.temperature, tau_plus=loss.tau_plus)
            for each in scores
        ]
        seen = {
            "clamped": torch.stack([floored for _, floored in both]).mean(),
            "aligned": (light * colour).sum(1).mean(),
        }
        return torch.stack([each.mean() for each, _ in both]).sum(), seen

    log = train(
        run,
        model,
        step,
        optimisation,
        samples=len(pictures),
        seed=seed,
        generator=generator,
        optimizer=optimizer,
        milestones=milestones or (),
    )
    return (
        evaluate(model, labelled, held_out)
        | {"floor": floors(model, held_out, optimisation.batch)}
        | images.last(log)
    )


def in_batch(light: Tensor, colour: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(pos [B], neg [B, B-1]) in both directions, for negatives from the batch.

    L is the anchor against the batch's ab, then ab against its L. light, colour: [B, d].
    """
    with torch.autocast(light.device.type, enabled=False):
        scores = light @ colour.T
    count = len(scores)
    pos = scores.diagonal()
    # without the diagonal: row i keeps the columns 0 .. B-2, moved by one from i on
    columns = torch.arange(count - 1, device=scores.device).expand(count, -1)
    columns = columns + (columns >= torch.arange(count, device=scores.device)[:, None])
    return (pos, scores.gather(1, columns)), (pos, scores.T.gather(1, columns))


def from_bank(
    light: Tensor,
    colour: Tensor,
    bank: Tensor,
    samples: Tensor,
    negatives: int,
    generator: torch.Generator,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(pos [B], neg [B, K]) in both directions, for negatives from the bank [2, n, d].

    L is the anchor against the bank's ab, then ab against its L. The same K images are drawn for
    both directions of an anchor, with replacement, its own left out. Gradients reach only the
    anchors.
    """
    n = bank.shape[1]
    drawn = torch.randint(
        n - 1, (len(samples), negatives), generator=generator, device=samples.device
    )
    drawn = drawn + (drawn >= samples[:, None])
    kept = bank.detach().clone()  # it is written to before the backward pass
    found = []
    with torch.autocast(light.device.type, enabled=False):
        for anchor, other in ((light, kept[1]), (colour, kept[0])):
            # [B, n]: one product is cheaper than gathering K rows for every anchor
            scores = anchor @ other.T
            found.append((scores.gather(1, samples[:, None])[:, 0], scores.gather(1, drawn)))
    return found[0], found[1]


def evaluate(
    model: Multiview, labelled: datasets.Dataset, held_out: datasets.Dataset
) -> dict[str, Any]:
    """The `frozen` probe and kNN on both encoders' features, and the probe on each half."""
    x, test_x = (
        evaluation.extract_features(Features(model), part.images, transform=_unit_range).float()
        for part in (labelled, held_out)
    )
    half = x.shape[1] // 2
    alone = {
        f"linear_{name}": evaluation.linear_probe(
            x[:, of], labelled.labels, test_x[:, of], held_out.labels
        ).accuracy
        for name, of in (("light", slice(half)), ("colour", slice(half, None)))
    }
    return knn_and_probe(x, labelled, test_x, held_out) | alone


def floors(model: Multiview, data: datasets.Dataset, batch: int) -> list[float]:
    """The share of the model's anchors on the floor at each (t, tau+) of FLOORS.

    Measured in batches of whole images of `data`.
    """
    shares = torch.zeros(len(FLOORS))
    model.eval()
    parts = [part for part in data.images.split(batch) if len(part) == min(batch, len(data.images))]
    with torch.no_grad():
        for part in parts:
            z = model(*views(_unit_range(part)))
            for index, (t, tau) in enumerate(FLOORS):
                both = (
                    losses.clamped_fraction(pos, neg, temperature=t, tau_plus=tau)
                    for pos, neg in in_batch(*z)
                )
                shares[index] += float(sum(both)) / 2 / len(parts)
    return [round(share, 4) for share in shares.tolist()]


def _unit_range(batch: Tensor) -> Tensor:
    return batch.float().div_(255)
