"""Random views of images, drawn and applied for a whole batch at once, on the device that holds it.

Every image of a batch has its own random parameters, as in a loader that treats images one by one
(torchvision's v2 transforms draw a single set for the whole batch). `draw` makes the parameters
from an explicit generator; `apply` is a pure function of images and parameters, with fixed shapes,
no branch on data and no wait for the device, so that `torch.compile(apply, fullgraph=True)` works;
`simclr` is one after the other. The defaults are the recipe of the code released with chuang2020
and robinson2021: RandomResizedCrop(32), flip 0.5, ColorJitter(0.4, 0.4, 0.4, 0.1) with p 0.8,
grayscale 0.2, 3x3 Gaussian blur with p 0.5 and sigma 0.1 to 2, CIFAR-10 statistics.

Three identities make it fast. Crop, resize and flip are linear and separable: two matrix products
per image, exact for enlarging and for (antialiased) shrinking alike. Brightness, contrast and
saturation are one affine map of a pixel, its luma and the image's mean luma, so one function does
all three, in any order. A hue rotation needs no HSV (see `hue`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
# as in the released code, for STL-10 too; the standard deviation over all pixels is 0.247, 0.243,
# 0.262
CIFAR10_STD = (0.2023, 0.1994, 0.2010)
# images at a time: their intermediate results then stay in the cache, and calls do not count
CPU_CHUNK = 256
# torchvision's numbering of ColorJitter's operations
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


class Parameters(NamedTuple):
    """The random choices for n images. A field that is None leaves its operation out for the whole
    batch.

    crop: [n, 4] top, left, height, width in whole pixels (float); flip: [n] bool;
    factors: [n, 4] for brightness, contrast, saturation (1 changes nothing) and hue (in turns, 0
    changes nothing); order: [n, 4] int64, order[i, s] is the operation that image i undergoes at
    step s; grayscale: [n] bool; sigma: [n] of the Gaussian blur in pixels, 0 for none.
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
    """One random view of each image: `draw`, then `apply`. Call it twice for the two views of a
    pair.

    images: uint8 [n, c, h, w] with c = 1 or 3 (one channel: the colour operations are left out);
    generator: on the images' device; recipe: keyword arguments of `draw`. Returns float32 [n, c,
    size, size], normalised. Raises ValueError for images or settings that do not fit.
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
    """Draw the parameters of n views of height x width images, independently for each, on the
    generator's device.

    The distributions are torchvision's: RandomResizedCrop(scale, ratio),
    RandomHorizontalFlip(flip_p), RandomApply([ColorJitter(*jitter)], jitter_p) with its random
    order, RandomGrayscale(grayscale_p), and a Gaussian blur with probability blur_p and sigma
    uniform in blur_sigma. `colour` and `blur` False leave the operations out. Raises ValueError for
    a probability outside [0, 1] or a range that is empty or impossible.
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
    """Boxes [n, 4] from uniform numbers: tries [n, 2, 10] for (area, aspect ratio) of ten attempts,
    place [n, 2] for the corner.

    As torchvision does one by one: the first attempt that fits in the image counts; if none does,
    the largest central crop with an aspect ratio in range.
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
    """Apply given parameters: crop and flip, colour jitter, grayscale, blur, normalisation, in this
    order.

    images: uint8 [n, c, h, w]; parameters: as `draw` returns, for n images of this height and
    width. Returns float32 [n, c, size, size]. mean and std, one per channel in [0, 1]: by default
    CIFAR-10's for colour, 0.5 for one channel.
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
    """Cut out a box, resize it to size x size (bilinear, antialiased when shrinking, as PIL does)
    and mirror it where flip is True.

    images: uint8 [n, c, h, w], or float in [0, 1]; boxes: [n, 4] top, left, height, width in whole
    pixels; flip: [n] bool. Returns float32 [n, c, size, size] in [0, 1].
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
    """Weights [n, size_out, size_in] that resample the pixels [start, start + length) of a line;
    start, length, flip: [n].

    A triangle filter around each output pixel's centre, as wide as an output pixel when shrinking
    and as an input pixel when enlarging, cut off at the box's edges and scaled to sum to one.
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
    """rows @ image @ columns^T for each image and channel: images [n, c, h, w], rows [n, H, h],
    columns [n, W, w] -> [n, c, H, W].
    """
    n, channels = images.shape[:2]
    tall = torch.matmul(rows[:, None], images)  # [n, c, H, w]
    return torch.bmm(tall.flatten(1, 2), columns.mT).view(
        n, channels, rows.shape[1], columns.shape[1]
    )


def colour_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, each image with its own factors in its own order,
    clamped to [0, 1] after each.

    images: float [n, 3, h, w] in [0, 1]; factors and order: [n, 4], see `Parameters`. Agrees with
    torchvision's four adjust_ functions.

    All images undergo their hue rotation, the expensive step, at the same moment: up to three of
    the other operations come before it and up to three after, and an image that has fewer on one
    side passes by unchanged.
    """
    factor = factors.gather(1, order)  # [n, 4], by step
    step = torch.arange(4, device=order.device)
    turn = (step * (order == HUE)).sum(1, keepdim=True)  # [n, 1], the step of the hue rotation
    images = _affine_steps(images, order[:, :3], torch.where(step < turn, factor, 1.0)[:, :3])
    images = hue(images, factors[:, HUE])
    return _affine_steps(images, order[:, 1:], torch.where(step > turn, factor, 1.0)[:, 1:])


def _affine_steps(images: Tensor, operations: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast or saturation, one after the other: factor * x + (1 - factor) * target,
    clamped, where the target is black, the image's mean luma or the pixel's luma. images: [n, 3, h,
    w]; operations, factors: [n, steps]; a factor of 1 changes nothing.
    """
    to_mean = torch.where(operations == CONTRAST, 1 - factors, 0.0)
    to_luma = torch.where(operations == SATURATION, 1 - factors, 0.0)
    for step in range(operations.shape[1]):
        luma = _luma(images)
        target = torch.addcmul(
            _wide(luma.mean((1, 2, 3)) * to_mean[:, step]), luma, _wide(to_luma[:, step])
        )
        images = torch.addcmul(target, images, _wide(factors[:, step])).clamp_(0, 1)
    return images


def hue(images: Tensor, factor: Tensor) -> Tensor:
    """Rotate the hue by factor [n] turns, in [-0.5, 0.5]; images: float [n, 3, h, w] in [0, 1].
    Agrees with torchvision's adjust_hue.

    Let a pixel have maximum v, minimum p and chroma d = v - p, and let u_c be its signed distance
    from the primary c on the hue circle of length 6. HSV says x_c = p + d clamp(2 - |u_c|, 0, 1).
    Case by case over the order of the channels one finds d |u_c| = r + g + b + v - 2p - 2 x_c, and
    u_c has the sign of (channel after c) - (channel before c). A rotation keeps v and p and adds 6
    factor to u_c. With |u_c| <= 3 before and <= 6 after, 2 minus the distance on the circle is
    ||u_c| - 3| - 1: no division, no case distinction and no HSV image are needed, and grey pixels
    (d = 0) stay as they are.
    """
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
    chroma = high - low
    red, green, blue = images.split(1, dim=1)
    distance = torch.sub(red + green + blue + high - 2 * low, images, alpha=2)
    side = torch.cat([green - blue, blue - red, red - green], dim=1)
    turned = torch.copysign(distance, side).add_(chroma * _wide(6 * factor))
    folded = turned.abs_().sub_(3 * chroma).abs_()
    return torch.clamp(folded.add_(low - chroma), low, high)


def grayscale(images: Tensor, chosen: Tensor) -> Tensor:
    """Replace all channels by the luma where chosen [n] is True; images: float [n, 3, h, w]."""
    return torch.lerp(images, _luma(images), _wide(chosen.to(images.dtype)))


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """3x3 Gaussian blur with borders reflected; images: float [n, c, h, w], h, w >= 2; sigma: [n]
    in pixels, 0 for none.
    """
    # weight of a neighbour relative to the centre; sigma 0: exp(-inf) = 0
    side = torch.exp(-0.5 / sigma.square())
    centre = 1 / (1 + 2 * side)
    for dim in (2, 3):
        length = images.shape[dim]
        padded = torch.cat(
            [images.narrow(dim, 1, 1), images, images.narrow(dim, length - 2, 1)], dim
        )
        neighbours = padded.narrow(dim, 0, length) + padded.narrow(dim, 2, length)
        images = neighbours.mul_(_wide(side * centre)).addcmul_(images, _wide(centre))
    return images


def _luma(images: Tensor) -> Tensor:
    """[n, 3, h, w] -> [n, 1, h, w], with torchvision's weights."""
    red, green, blue = images.split(1, dim=1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _wide(values: Tensor) -> Tensor:
    """[n] -> [n, 1, 1, 1]."""
    return values[:, None, None, None]


def normalise(
    images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Tensor:
    """(images - mean) / std per channel, for evaluation: uint8 [n, c, h, w], or float in [0, 1] ->
    float of that shape.

    mean, std: one number per channel; by default CIFAR-10's for three channels and 0.5 for one.
    """
    if images.is_floating_point():
        return _normalise(images.clone(), mean, std)
    _check_images(images)
    return _normalise(images.float().div_(255), mean, std)


def _normalise(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Normalise float images in place; the caller owns them. Numbers, not tensors: copying a tensor
    to the device would wait for it.
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


def shift(images: Tensor, generator: torch.Generator, pixels: int) -> Tensor:
    """Move each image by a random whole number of pixels in [-pixels, pixels], down and right
    independently; what enters is 0.

    images: [n, c, h, w], any dtype, kept; generator: on the images' device. For drawings on a black
    ground.
    """
    if pixels < 0:
        raise ValueError(f"pixels is {pixels}: it must not be negative")
    offsets = torch.randint(
        -pixels, pixels + 1, (images.shape[0], 2), generator=generator, device=images.device
    )
    return translate(images, offsets)


def translate(images: Tensor, offsets: Tensor) -> Tensor:
    """Move each image by offsets [n, 2] whole pixels (down, right); images: [n, c, h, w]; what
    enters is 0.
    """
    height, width = images.shape[2:]
    # [n, h], where each row comes from
    row = torch.arange(height, device=images.device) - offsets[:, :1]
    column = torch.arange(width, device=images.device) - offsets[:, 1:]
    inside = ((row >= 0) & (row < height))[:, None, :, None] & ((column >= 0) & (column < width))[
        :, None, None, :
    ]
    # [n, h, w]
    source = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None, :]
    moved = (
        images.flatten(2)
        .gather(2, source.flatten(1)[:, None].expand(-1, images.shape[1], -1))
        .view_as(images)
    )
    return torch.where(inside, moved, 0)


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images are {images.dtype} of shape {tuple(images.shape)}: expected torch.uint8 [n, "
            "c, h, w] with c = 1 or 3"
        )
