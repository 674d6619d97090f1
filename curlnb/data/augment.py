"""Random views of images, drawn and applied for a whole batch at once, on its device.

Every image of a batch has its own random parameters, as in a loader that treats images one by one
(torchvision's v2 transforms draw a single set for the whole batch). `draw` makes the parameters
from an explicit generator; `apply` is a pure function of images and parameters, with fixed shapes,
no branch on data and no wait for the device, so that `torch.compile(apply, fullgraph=True)` works;
`simclr` is one after the other. The defaults are the recipe of the code released with chuang2020
and robinson2021: RandomResizedCrop(32), flip 0.5, ColorJitter(0.4, 0.4, 0.4, 0.1) with p 0.8,
grayscale 0.2, 3x3 Gaussian blur with p 0.5 and sigma 0.1 to 2, CIFAR-10 statistics.

Crop, resize and flip are linear and separable, which makes them fast: two matrix products per
image, exact for enlarging and for (antialiased) shrinking alike. `curlnb.data.photometric` has the
operations on colours.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from curlnb.data.photometric import HUE, blur, colour_jitter, grayscale

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
# as in the released code, for STL-10 too; over all pixels it is 0.247, 0.243, 0.262
CIFAR10_STD = (0.2023, 0.1994, 0.2010)
# images at a time on a CPU: the intermediate results stay in the cache, and calls cost little
CPU_CHUNK = 256


class Parameters(NamedTuple):
    """The random choices for n images. None leaves an operation out for the whole batch.

    crop: [n, 4] top, left, height, width in whole pixels (float); flip: [n] bool; factors: [n, 4]
    for brightness, contrast, saturation (1 changes nothing) and hue (in turns, 0 changes nothing);
    order: [n, 4] int64, order[i, s] is the operation of image i at step s; grayscale: [n] bool;
    sigma: [n] of the Gaussian blur in pixels, 0 for none.
    """

    crop: Tensor
    flip: Tensor
    factors: Tensor | None = None
    order: Tensor | None = None
    grayscale: Tensor | None = None
    sigma: Tensor | None = None


def simclr(
    images: Tensor,
    generator: torch.Generator,
    *,
    size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **recipe: Any,
) -> Tensor:
    """One random view of each image: `draw`, then `apply`. Two calls give the two views of a pair.

    images: uint8 [n, c, h, w] with c = 1 or 3 (one channel: the colour operations are left out);
    generator: on the images' device; recipe: keyword arguments of `draw`. Returns float32 [n, c,
    size, size], normalised. ValueError for images or settings that do not fit.
    """
    _check_images(images)
    if generator.device.type != images.device.type:
        raise ValueError(
            f"generator is on {generator.device}, images are on {images.device}: use "
            "torch.Generator(device=images.device)"
        )
    n, channels, height, width = images.shape
    return apply(
        images,
        draw(n, height, width, generator, colour=channels == 3, **recipe),
        size=size,
        mean=mean,
        std=std,
    )


def draw(
    n: int,
    height: int,
    width: int,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip_p: float = 0.5,
    colour: bool = True,
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
    jitter_p: float = 0.8,
    grayscale_p: float = 0.2,
    blur: bool = True,
    blur_p: float = 0.5,
    blur_sigma: tuple[float, float] = (0.1, 2.0),
) -> Parameters:
    """Draw the parameters of n views of height x width images, independently for each.

    They are on the generator's device. The distributions are torchvision's:
    RandomResizedCrop(scale, ratio), RandomHorizontalFlip(flip_p),
    RandomApply([ColorJitter(*jitter)], jitter_p) with its random order,
    RandomGrayscale(grayscale_p), and a Gaussian blur with probability blur_p and sigma uniform in
    blur_sigma. `colour` and `blur` False leave the operations out. ValueError for a probability
    outside [0, 1], a range that is empty or not above 0, or a strength below 0.
    """
    for name, value in (
        ("flip_p", flip_p),
        ("jitter_p", jitter_p),
        ("grayscale_p", grayscale_p),
        ("blur_p", blur_p),
    ):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}: a probability lies in [0, 1]")
    for name, (low, high) in (("scale", scale), ("ratio", ratio), ("blur_sigma", blur_sigma)):
        if not 0 < low <= high:
            raise ValueError(f"{name} is {(low, high)}: it needs 0 < low <= high")
    if len(jitter) != 4 or min(jitter) < 0 or jitter[HUE] > 0.5:
        raise ValueError(
            f"jitter is {jitter}: it needs four strengths >= 0, the last (hue) at most 0.5"
        )
    # one call: few kernels
    uniform = torch.rand(n, 16, generator=generator, device=generator.device)
    crop = _draw_crop(
        height,
        width,
        torch.rand(n, 2, 10, generator=generator, device=generator.device),
        uniform[:, :2],
        scale,
        ratio,
    )
    parameters = Parameters(crop=crop, flip=uniform[:, 2] < flip_p)
    if colour:
        jittered = uniform[:, 3] < jitter_p
        factors = []
        for operation, strength in enumerate(jitter):
            unchanged = 0.0 if operation == HUE else 1.0
            low = -strength if operation == HUE else max(1 - strength, 0.0)
            factor = low + (unchanged + strength - low) * uniform[:, 4 + operation]
            factors.append(torch.where(jittered, factor, unchanged))
        order = uniform[:, 8:12].argsort(1)
        parameters = parameters._replace(
            factors=torch.stack(factors, dim=1), order=order, grayscale=uniform[:, 12] < grayscale_p
        )
    if blur:
        sigma = blur_sigma[0] + (blur_sigma[1] - blur_sigma[0]) * uniform[:, 13]
        parameters = parameters._replace(sigma=torch.where(uniform[:, 14] < blur_p, sigma, 0.0))
    return parameters


def _draw_crop(
    height: int,
    width: int,
    tries: Tensor,
    place: Tensor,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Boxes [n, 4] from uniform numbers.

    tries: [n, 2, 10] for (area, aspect ratio) of ten attempts; place: [n, 2] for the corner. As in
    torchvision the first attempt that fits in the image counts; if none does, the largest central
    crop with an aspect ratio in range.
    """
    area = height * width * (scale[0] + (scale[1] - scale[0]) * tries[:, 0])
    aspect = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * tries[:, 1])
    boxes = torch.stack(
        [torch.sqrt(area / aspect), torch.sqrt(area * aspect)], dim=1
    ).round()  # [n, 2, 10] height, width
    fits = (
        (boxes[:, 0] >= 1) & (boxes[:, 0] <= height) & (boxes[:, 1] >= 1) & (boxes[:, 1] <= width)
    )
    first = fits.int().argmax(1)  # the first of equals; 0 if none fits, and then not used
    # [n, 1] each
    box_height, box_width = boxes.gather(2, first[:, None, None].expand(-1, 2, 1)).unbind(1)
    room = torch.cat([height - box_height, width - box_width], dim=1)  # [n, 2]
    # the minimum guards against place * (room + 1) rounding up
    corner = torch.minimum((place * (room + 1)).floor(), room)

    if width / height < ratio[0]:
        central_height, central_width = round(width / ratio[0]), width
    elif width / height > ratio[1]:
        central_height, central_width = height, round(height * ratio[1])
    else:
        central_height, central_width = height, width
    top, left = (height - central_height) // 2, (width - central_width) // 2
    central = torch.stack(
        [torch.full_like(place[:, 0], v) for v in (top, left, central_height, central_width)], dim=1
    )
    return torch.where(
        fits.any(1, keepdim=True), torch.cat([corner, box_height, box_width], dim=1), central
    )


def apply(
    images: Tensor,
    parameters: Parameters,
    *,
    size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Tensor:
    """Apply parameters: crop and flip, colour jitter, grayscale, blur and normalisation.

    images: uint8 [n, c, h, w]; parameters: as `draw` returns, for n images of this height and
    width. Returns float32 [n, c, size, size]. mean and std, one per channel in [0, 1]: by default
    CIFAR-10's for colour, 0.5 for one channel. ValueError for images and parameters that do not
    fit.
    """
    _check_images(images)
    if size < 2:
        raise ValueError(f"size is {size}: a view needs at least 2 x 2 pixels")
    if parameters.crop.shape[0] != images.shape[0]:
        raise ValueError(
            f"parameters are for {parameters.crop.shape[0]} images, the batch has {images.shape[0]}"
        )
    if images.shape[1] != 3 and (
        parameters.factors is not None or parameters.grayscale is not None
    ):
        raise ValueError(
            "colour operations need images of three channels: draw(..., colour=False) leaves them "
            "out"
        )
    if images.device.type == "cpu" and len(images) > CPU_CHUNK:
        chunks = []
        for i in range(0, len(images), CPU_CHUNK):
            few = {
                name: p if p is None else p[i : i + CPU_CHUNK]
                for name, p in parameters._asdict().items()
            }
            chunks.append(
                apply(
                    images[i : i + CPU_CHUNK],
                    Parameters(**few),  # type: ignore[arg-type]
                    size=size,
                    mean=mean,
                    std=std,
                )
            )
        return torch.cat(chunks)
    # bfloat16 keeps 8 bits: grey levels would be lost
    with torch.autocast(images.device.type, enabled=False):
        views = crop(images, parameters.crop, parameters.flip, size)
        if parameters.factors is not None and parameters.order is not None:
            views = colour_jitter(views, parameters.factors, parameters.order)
        if parameters.grayscale is not None:
            views = grayscale(views, parameters.grayscale)
        if parameters.sigma is not None:
            views = blur(views, parameters.sigma)
        return _normalise(views, mean, std)


def crop(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Cut out a box, resize it to size x size and mirror it where flip is True.

    Bilinear, antialiased when shrinking, as PIL does. images: uint8 [n, c, h, w], or float in [0,
    1]; boxes: [n, 4] top, left, height, width in whole pixels; flip: [n] bool. Returns float32 [n,
    c, size, size] in [0, 1].
    """
    top, left, height, width = boxes.unbind(1)
    rows = _resize_weights(top, height, torch.zeros_like(flip), images.shape[2], size)
    columns = _resize_weights(left, width, flip, images.shape[3], size)
    if images.dtype == torch.uint8:
        columns = columns / 255
    return _separable(images.float(), rows, columns)


def _resize_weights(
    start: Tensor, length: Tensor, flip: Tensor, size_in: int, size_out: int
) -> Tensor:
    """Weights [n, size_out, size_in] that resample the pixels [start, start + length) of a line.

    start, length, flip: [n]. A triangle filter around each output pixel's centre, as wide as an
    output pixel when shrinking and as an input pixel when enlarging, cut off at the box's edges and
    scaled to sum to one.
    """
    step = length / size_out  # input pixels per output pixel
    support = step.clamp(min=1)
    target = torch.arange(size_out, device=start.device, dtype=torch.float32)
    target = torch.where(flip[:, None], size_out - 1 - target, target)
    centre = start[:, None] + (target + 0.5) * step[:, None]  # [n, size_out], in input pixels
    pixel = torch.arange(size_in, device=start.device, dtype=torch.float32).expand(
        start.shape[0], -1
    )
    outside = (pixel < start[:, None]) | (pixel >= (start + length)[:, None])
    pixel = torch.where(outside, torch.inf, pixel + 0.5)  # infinitely far: no weight
    distance = (pixel / support[:, None])[:, None, :] - (centre / support[:, None])[:, :, None]
    weights = (1 - distance.abs_()).clamp_(min=0)
    return weights.div_(weights.sum(2, keepdim=True))


def _separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows @ image @ columns^T for each image and channel.

    images: [n, c, h, w], rows: [n, H, h], columns: [n, W, w]. Returns [n, c, H, W].
    """
    n, channels = images.shape[:2]
    tall = torch.matmul(rows[:, None], images)  # [n, c, H, w]
    return torch.bmm(tall.flatten(1, 2), columns.mT).view(
        n, channels, rows.shape[1], columns.shape[1]
    )


def normalise(
    images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Tensor:
    """(images - mean) / std per channel, for evaluation. Returns float [n, c, h, w].

    images: uint8 [n, c, h, w], or float in [0, 1]. mean, std: one number per channel; by default
    CIFAR-10's for three channels and 0.5 for one.
    """
    if images.is_floating_point():
        return _normalise(images.clone(), mean, std)
    _check_images(images)
    return _normalise(images.float().div_(255), mean, std)


def _normalise(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Normalise float images in place; the caller owns them.

    By numbers, not tensors: copying a tensor to the device would wait for it.
    """
    channels = images.shape[1]
    mean = mean if mean is not None else CIFAR10_MEAN if channels == 3 else (0.5,)
    std = std if std is not None else CIFAR10_STD if channels == 3 else (0.5,)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise ValueError(
            f"mean {tuple(mean)} and std {tuple(std)} must have one number for each of {channels} "
            "channels, std > 0"
        )
    for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
        images[:, channel].sub_(m).div_(s)
    return images


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images are {images.dtype} of shape {tuple(images.shape)}: expected torch.uint8 [n, "
            "c, h, w] with c = 1 or 3"
        )
