"""What the losses ask of their arguments; what does not fit is a one-line ValueError."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

Number = float | Tensor


def is_known(data: Tensor, condition: Callable[[Tensor], Tensor]) -> bool:
    """Whether a condition on data is known to hold. Only data on the CPU is read: a GPU would have
    to be waited for, and torch.compile and torch.func.vmap have no value to read.
    """
    if not data.is_cpu or torch.compiler.is_compiling():
        return False
    try:
        return bool(condition(data.detach()))
    except RuntimeError:  # vmap
        return False


def check_number(name: str, value: object, within: Callable[[Any], Any], wanted: str) -> None:
    """A number, or a tensor of numbers, within its range (where `is_known` looks at a tensor)."""
    if isinstance(value, Tensor):
        right = not is_known(value, lambda x: ~within(x).all())
    else:
        right = isinstance(value, Real) and within(value)
    if not right:
        raise ValueError(f"{name} must be {wanted}, not {' '.join(repr(value).split()):.60}")


def is_zero(value: Number) -> bool:
    """Whether an option is the number 0; a tensor may change, and is never taken for it."""
    return not isinstance(value, Tensor) and value == 0


def log(value: Number) -> Any:
    """Of a number as a number, -inf at 0; of a tensor as a tensor, so that it gets its gradient."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value else -math.inf


def upcast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """All in the widest of their types, and in float32 at least. ValueError unless they are
    floating-point tensors on one device.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    right = all(
        isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.device == given[0].device
        for tensor in given
    )
    require(right, "floating-point tensors on one device", *given)
    wide = any(tensor.dtype == torch.float64 for tensor in given)
    dtype = torch.float64 if wide else torch.float32
    return tuple(tensor if tensor is None else tensor.to(dtype) for tensor in tensors)


def require(right: bool, wanted: str, *found: object) -> None:
    """ValueError that shows what was found, unless it is right."""
    if not right:
        shown = [
            f"{x.dtype} {tuple(x.shape)} on {x.device}"
            if isinstance(x, Tensor)
            else type(x).__name__
            for x in found
        ]
        raise ValueError(f"need {wanted}, not {', '.join(shown)}")


def check_masks(neg: Tensor, **masks: Tensor | None) -> None:
    """Bool tensors of the shape and on the device of neg, where given."""
    expected = (torch.bool, neg.shape, neg.device)
    for name, mask in masks.items():
        fits = isinstance(mask, Tensor) and (mask.dtype, mask.shape, mask.device) == expected
        require(mask is None or fits, f"{name} bool {list(neg.shape)} on {neg.device}", mask)
