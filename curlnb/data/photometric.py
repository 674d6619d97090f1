"""Photometric operations on a batch of images, with separate parameters for each image.

Two identities make them fast. Brightness, contrast and saturation are one affine map of a pixel,
its luma and the image's mean luma, so one function does all three, in any order. A hue rotation
needs no HSV (see `hue`).
"""

import torch
from torch import Tensor

# torchvision's numbering of ColorJitter's operations
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def colour_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, each image with its own factors in its own order.

    Clamped to [0, 1] after each, and equal to torchvision's four adjust_ functions. images: float
    [n, 3, h, w] in [0, 1]; factors and order: [n, 4], see `augment.Parameters`.

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
    """Brightness, contrast or saturation, one after the other, clamped.

    Each is factor * x + (1 - factor) * target, where the target is black, the image's mean luma or
    the pixel's luma. images: [n, 3, h, w]; operations, factors: [n, steps]; a factor of 1 changes
    nothing.
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
    """Rotate the hue by factor [n] turns, in [-0.5, 0.5]; equal to torchvision's adjust_hue.

    images: float [n, 3, h, w] in [0, 1]. Let a pixel have maximum v, minimum p and chroma d = v -
    p, and let u_c be its signed distance from the primary c on the hue circle of length 6. HSV has
    x_c = p + d clamp(2 - |u_c|, 0, 1). Case by case over the order of the channels one finds d
    |u_c| = r + g + b + v - 2p - 2 x_c, and u_c has the sign of (channel after c) - (channel before
    c). A rotation keeps v and p and adds 6 factor to u_c. With |u_c| <= 3 before and <= 6 after, 2
    minus the distance on the circle is ||u_c| - 3| - 1: no division, no case distinction and no HSV
    image are needed, and grey pixels (d = 0) stay as they are.
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
    """3x3 Gaussian blur with reflected borders.

    images: float [n, c, h, w], h, w >= 2; sigma: [n] in pixels, 0 for none.
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
