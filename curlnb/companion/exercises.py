"""The check of an exercise: "not answered yet", "right", or what is wrong.

    with notebook.check(price):
        assert price(1, "hinge") == 1, "every difference is 0, and so is the largest"

A notebook's checks raise nothing, so that all of its cells can be run before any is answered. In
the grading edition (`tools/course.py`) `grade` stands in place of `check`, and raises.
"""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_OF_A_STUB = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}


@contextmanager
def check(answer: Callable[..., Any]) -> Iterator[None]:
    """Run the assertions inside, and print what they say of the function that answers."""
    try:
        with grade(answer):
            yield
    except AssertionError as error:
        print(error if is_stub(answer) else f"wrong: {error}")
    else:
        print("right")


@contextmanager
def grade(answer: Callable[..., Any]) -> Iterator[None]:
    """Run the assertions inside. AssertionError where they fail, or where nothing is answered."""
    try:
        yield
    except Exception as error:
        raise AssertionError("not answered yet" if is_stub(answer) else _why(error)) from error


def is_stub(answer: Callable[..., Any]) -> bool:
    """Whether a function's body is `...` or `pass`, perhaps below a docstring."""
    steps = list(dis.get_instructions(answer))
    returns_none = any(step.argval is None for step in steps if "CONST" in step.opname)
    return returns_none and {step.opname for step in steps} <= _OF_A_STUB


def _why(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    kind = type(error).__name__
    if not isinstance(error, AssertionError):
        return f"{kind}: {lines[-1]}" if lines else kind
    return lines[0] if lines else "an assertion fails"
