"""Rearranging floats, and going between them and lanes of integers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch

from invariants.memory import arrays, float_types
from invariants.memory.floats import Floats, either, rearranged
from invariants.memory.lanes import Array, Lanes, of_array
from invariants.memory.lanes import full as full_lanes
from invariants.memory.ttir import Operation


def lanes_of(
    array: Array, bits: int, shape: tuple[int, ...], doubt: torch.Tensor | None
) -> Lanes:
    """Integers that were made of floats."""
    result = of_array(array, bits, shape)
    return result if doubt is None else replace(result, unknown=doubt.numpy())


def truth_of(lanes: Lanes, rank: int) -> torch.Tensor:
    """A predicate as a tensor of a rank; a scalar one counts for all lanes."""
    return _ranked(lanes.dense(), rank)


def doubt_of(lanes: Lanes, rank: int) -> torch.Tensor | None:
    """Where a value is unknown, as a tensor of a rank."""
    return None if lanes.unknown is None else _ranked(lanes.unknown, rank)


def _ranked(array: Array, rank: int) -> torch.Tensor:
    if array.ndim - 1 != rank:
        array = array.reshape(array.shape[0], *(1,) * rank)
    return float_types.tensor_of(array)


def known_bits(lanes: Lanes, element: str) -> Floats:
    """Integers read as floats of the same width."""
    width = np.dtype(f"int{lanes.bits}")
    numbers = float_types.of_bits(lanes.dense().astype(width), element)
    return Floats(lanes.shape, element, numbers, doubt_of(lanes, len(lanes.shape)))


def full(floats: Floats) -> torch.Tensor:
    """All lanes ``[rows or 1, *shape]``, every axis at its size."""
    return floats.array.expand(floats.array.shape[0], *floats.shape)


def selected(condition: Lanes, left: Floats, right: Floats) -> Floats:
    """Left where the condition holds; the condition may be a scalar."""
    rank = len(left.shape)
    truth = truth_of(condition, rank)
    array = torch.where(truth, left.array, right.array)
    doubt: torch.Tensor | None = None
    if left.unknown is not None or right.unknown is not None:
        none = torch.zeros((1,) * (1 + rank), dtype=torch.bool)
        doubt = torch.where(
            truth,
            none if left.unknown is None else left.unknown,
            none if right.unknown is None else right.unknown,
        )
    return Floats(
        left.shape, left.element, array, either(doubt, doubt_of(condition, rank))
    )


def joined(values: list[Floats], axis: int, *, new: bool) -> Floats:
    """Values behind each other along an axis, or along a new one."""
    first = values[0]
    rows = max(
        array.shape[0]
        for each in values
        for array in (each.array, each.unknown)
        if array is not None
    )
    put = torch.stack if new else torch.cat

    def whole(array: torch.Tensor, each: Floats) -> torch.Tensor:
        return array.expand(rows, *each.shape)

    array = put([whole(each.array, each) for each in values], dim=axis + 1)
    doubt = None
    if any(each.unknown is not None for each in values):
        none = torch.zeros((1,) * (1 + len(first.shape)), dtype=torch.bool)
        doubt = put(
            [
                whole(none if each.unknown is None else each.unknown, each)
                for each in values
            ],
            dim=axis + 1,
        )
    return Floats(tuple(array.shape[1:]), first.element, array, doubt)


def columns(value: Floats, axis: int, start: int, end: int) -> Floats:
    """Lanes `start` to `end` along an axis."""

    def of(array: torch.Tensor) -> torch.Tensor:
        single = array.shape[axis + 1] == 1
        return array if single else array.narrow(axis + 1, start, end - start)

    shape = (*value.shape[:axis], end - start, *value.shape[axis + 1 :])
    return rearranged(value, shape, of)


def column(value: Floats, axis: int, at: int) -> Floats:
    """One lane along an axis, which is dropped."""

    def of(array: torch.Tensor) -> torch.Tensor:
        return array.select(axis + 1, 0 if array.shape[axis + 1] == 1 else at)

    return rearranged(value, (*value.shape[:axis], *value.shape[axis + 1 :]), of)


def split(value: Floats) -> tuple[Floats, Floats]:
    """The two halves along the last axis, whose size is 2."""
    last = len(value.shape) - 1
    return column(value, last, 0), column(value, last, 1)


def gathered(value: Floats, index: Lanes, axis: int) -> Floats:
    """Lanes picked along an axis; what is picked from beyond its end is unknown."""
    at = float_types.tensor_of(full_lanes(index))
    rows = max(value.array.shape[0], at.shape[0])
    at = at.expand(rows, *index.shape)
    inside = (at >= 0) & (at < value.shape[axis])
    place = torch.where(inside, at, 0)

    def of(array: torch.Tensor) -> torch.Tensor:
        whole = array.expand(rows, *value.shape)
        if array.element_size() == 1 and array.dtype != torch.bool:
            bits = whole.contiguous().view(torch.int8)
            return torch.gather(bits, axis + 1, place).view(array.dtype)
        return torch.gather(whole, axis + 1, place)

    picked = rearranged(value, index.shape, of)
    outside = None if bool(inside.all()) else ~inside
    doubt = either(picked.unknown, outside, doubt_of(index, len(index.shape)))
    return replace(picked, unknown=doubt)


def _splat(operation: Operation, value: Floats) -> Floats:
    return expanded(value, operation.types[-1].shape)


def _unsplat(_: Operation, value: Floats) -> Floats:
    return rearranged(value, (), lambda a: a.reshape(a.shape[0]))


def expanded(value: Floats, shape: tuple[int, ...]) -> Floats:
    """The same value with more lanes along axes of size 1."""
    if len(value.shape) != len(shape):
        ones = (1,) * len(shape)
        return rearranged(value, shape, lambda a: a.reshape(a.shape[0], *ones))
    return replace(value, shape=shape)


def _broadcast(operation: Operation, value: Floats) -> Floats:
    shape = operation.types[-1].shape
    return Floats(shape, value.element, value.array, value.unknown)


def _expand_dims(operation: Operation, value: Floats) -> Floats:
    axis = arrays.attribute(operation, "axis")
    shape = (*value.shape[:axis], 1, *value.shape[axis:])
    return rearranged(value, shape, lambda a: a.unsqueeze(axis + 1))


def _reshape(operation: Operation, value: Floats) -> Floats:
    shape = operation.types[-1].shape

    def of(array: torch.Tensor) -> torch.Tensor:
        if all(size == 1 for size in array.shape[1:]):
            return array.reshape(array.shape[0], *(1,) * len(shape))
        whole = array.expand(array.shape[0], *value.shape)
        return whole.reshape(array.shape[0], *shape)

    return rearranged(value, shape, of)


def _transpose(operation: Operation, value: Floats) -> Floats:
    found = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
    if found is None:
        raise ValueError(f"tt.trans has no order: {operation.text}")
    order = [int(each) for each in found.group(1).split(",")]
    shape = tuple(value.shape[axis] for axis in order)
    axes = [0, *(axis + 1 for axis in order)]
    return rearranged(value, shape, lambda a: a.permute(axes))


# Operations that only rearrange lanes of one value.
STRUCTURAL: Mapping[str, Callable[[Operation, Floats], Floats]] = MappingProxyType(
    {
        "tt.splat": _splat,
        "tt.unsplat": _unsplat,
        "tt.broadcast": _broadcast,
        "tt.expand_dims": _expand_dims,
        "tt.reshape": _reshape,
        "tt.trans": _transpose,
    }
)
