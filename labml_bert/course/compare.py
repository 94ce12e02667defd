"""
# What is expected, and what your code does

How do you compare two implementations that may look nothing alike? You run both on the same inputs and
observe something: a result, a shape, a count, a fraction, or an exception. This file compares observations
and puts a difference into words.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

Probe = Callable[[Any], Iterator[tuple[str, Any]]]
"""The check of a step: a generator that uses a module and yields observations, each with a name."""


@dataclass(frozen=True)
class Near:
    """A number that depends on random draws, so it may differ by up to `tolerance`."""

    value: float
    tolerance: float


@dataclass(frozen=True)
class Raised:
    """An exception: its type, its message, and where it was raised."""

    kind: str
    message: str
    traceback: TracebackType | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def describe_exception(error: BaseException) -> Raised:
    """Describes an exception. If its class is the learner's, its `__str__` can raise another exception."""
    try:
        message = " ".join(str(error).split())
    except BaseException:
        message = ""
    return Raised(type(error).__name__, message, error.__traceback__)


class Observation(NamedTuple):
    """One thing that a probe observed."""

    name: str
    value: Any


def observe(probe: Probe, module: ModuleType) -> list[Observation]:
    """Runs a probe. An exception, even `SystemExit`, is the last observation."""
    observations = []
    # The learner's file may have changed one of these settings, also for the original code.
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.manual_seed(0)
    try:
        for name, value in probe(module):
            observations.append(Observation(name, value))
    except BaseException as error:
        observations.append(Observation("error", describe_exception(error)))
    return observations


def first_difference(expected: list[Observation], actual: list[Observation]) -> int | None:
    """The index of the first observation that differs, or `None` if all agree."""
    for i, (a, b) in enumerate(zip(expected, actual, strict=False)):
        if a.name != b.name or describe_difference(a.value, b.value):
            return i
    return None if len(expected) == len(actual) else min(len(expected), len(actual))


def describe_difference(expected: Any, actual: Any) -> list[str]:
    """The lines that say how two values differ, or an empty list if they agree."""
    if isinstance(expected, Near) and isinstance(actual, Near):
        is_equal = abs(expected.value - actual.value) <= expected.tolerance
        return [] if is_equal else pair(f"about {expected.value:.3g}", f"{actual.value:.3g}")
    if isinstance(expected, Raised) and isinstance(actual, Raised):
        is_equal = (expected.kind, expected.message) == (actual.kind, actual.message)
        return [] if is_equal else pair(str(expected), str(actual))
    if isinstance(expected, Tensor) and isinstance(actual, Tensor):
        return describe_tensors(expected, actual)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            words = summarize if is_long(expected) or is_long(actual) else describe
            return pair(words(expected), words(actual))
        parts = [describe_difference(a, b) for a, b in zip(expected, actual, strict=True)]
        if any(parts) and len(parts) < 20 and all(isinstance(value, int) for value in expected):
            return pair(describe(expected), describe(actual))
        names = getattr(expected, "_fields", [f"element {i}" for i in range(len(expected))])
        return next(([f"in {name}:", *part] for name, part in zip(names, parts, strict=True) if part), [])
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            return pair(f"the keys {', '.join(map(str, expected))}", f"{', '.join(map(str, actual))}")
        by_key = {key: describe_difference(value, actual[key]) for key, value in expected.items()}
        return next(([f"in {key}:", *part] for key, part in by_key.items() if part), [])
    if isinstance(expected, float) and isinstance(actual, float | int) and not isinstance(actual, bool):
        return describe_tensors(torch.tensor(expected).double(), torch.tensor(actual).double())
    if type(expected) is type(actual) and expected == actual:
        return []
    a, b = describe(expected), describe(actual)
    if type(expected) is int and isinstance(actual, float):
        a, b = f"{expected:,} (int)", f"{actual:,} (float)"
    if a == b or (isinstance(expected, bool) and type(actual) in (int, float)):
        a, b = f"{a} ({type(expected).__name__})", f"{b} ({type(actual).__name__})"
    return pair(a, b)


def describe_tensors(expected: Tensor, actual: Tensor) -> list[str]:
    """
    Compares shapes, then types, then values, and describes the first number that differs most. At last,
    compares whether a loss computed from the tensor would have a gradient.
    """
    if expected.shape != actual.shape:
        return pair(f"shape {tuple(expected.shape)}", f"shape {tuple(actual.shape)}")
    if expected.dtype != actual.dtype:
        return pair(str(expected.dtype).removeprefix("torch."), str(actual.dtype).removeprefix("torch."))
    a, b = expected.detach().double(), actual.detach().double()
    is_equal = torch.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    if is_equal.all():
        words = ("a tensor without a gradient", "a tensor with a gradient")
        has_same = expected.requires_grad == actual.requires_grad
        return [] if has_same else pair(words[expected.requires_grad], words[actual.requires_grad])
    if a.dim() == 0:
        return pair(describe(expected), describe(actual))
    gap = (a - b).abs().nan_to_num(nan=float("inf")).masked_fill(is_equal, -1.0)
    index = [int(i) for i in torch.unravel_index(gap.argmax(), gap.shape)]
    where = f"{int((~is_equal).sum()):,} of {is_equal.numel():,} numbers differ; at {index}:"
    return [where, *pair(describe(expected[tuple(index)]), describe(actual[tuple(index)]))]


def describe(value: Any) -> str:
    """A value in a few words: a number as it is, and a tensor by its shape."""
    if isinstance(value, Near):
        return f"about {value.value:.3g}"
    if isinstance(value, Tensor):
        if value.dim():
            return f"a tensor of shape {tuple(value.shape)}"
        value = value.item()
    if isinstance(value, float):
        return f"{value:.4g}"
    if type(value) is int and value >= 10_000:
        return f"{value:,}"
    if isinstance(value, tuple) and value and all(isinstance(part, float) for part in value):
        return f"({', '.join(map(describe, value))})"
    if isinstance(value, list | tuple | dict) and is_long(value):
        return summarize(value)
    return repr(value) if isinstance(value, str | int | list | tuple | dict | None) else str(value)


def is_long(value: Any) -> bool:
    """Whether a collection is too long to print, or holds tensors."""
    return "tensor(" in repr(value) or len(repr(value)) > 200


def summarize(value: Any) -> str:
    """The type and the length of a collection."""
    return f"{type(value).__name__} of length {len(value)}"


def pair(expected: str, actual: str) -> list[str]:
    """The two lines that show a difference."""
    return [f"  expected  {expected}", f"  found     {actual}"]
