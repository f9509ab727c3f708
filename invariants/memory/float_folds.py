"""Reductions and scans in which floats take part, with any region.

Halves are combined until one lane is left, as a GPU's lanes do among themselves, so a
sum of n numbers has the error of log2(n) additions, and so have the kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from invariants.memory import arrays, float_lanes, float_types
from invariants.memory.float_functions import FUNCTIONS, Function
from invariants.memory.float_lanes import full
from invariants.memory.floats import Floats
from invariants.memory.frames import Frame, UndecidedError
from invariants.memory.lanes import Lanes
from invariants.memory.ttir import Operation

if TYPE_CHECKING:
    from invariants.memory.execute import Run

Number = Lanes | Floats


def reduce(run: Run, operation: Operation, frame: Frame) -> None:
    """`tt.reduce` of floats, or of floats and integers, with any region."""
    axis = arrays.attribute(operation, "axis")
    held = _held(operation, frame)
    plain = _single(operation)
    if plain is not None and len(held) == 1 and isinstance(held[0], Floats):
        frame.values[operation.results[0]] = _folded(held[0], axis, plain)
        return
    length = held[0].shape[axis]
    while length > 1:
        half = length // 2
        low = [_columns(each, axis, 0, half) for each in held]
        high = [_columns(each, axis, half, 2 * half) for each in held]
        both = _combined(run, operation, frame, low, high)
        if length % 2:
            rest = [_columns(each, axis, 2 * half, length) for each in held]
            both = [
                _behind([a, b], axis, new=False)
                for a, b in zip(both, rest, strict=True)
            ]
        held, length = both, half + length % 2
    for number, value in zip(operation.results, held, strict=True):
        frame.values[number] = _column(value, axis, 0)


def scan(run: Run, operation: Operation, frame: Frame) -> None:
    """`tt.scan` of floats, or of floats and integers, with any region."""
    axis = arrays.attribute(operation, "axis")
    held = _held(operation, frame)
    length = held[0].shape[axis]
    backward = "reverse = true" in operation.text
    lanes: dict[int, list[Number]] = {}
    before: list[Number] | None = None
    for at in range(length)[:: -1 if backward else 1]:
        here = [_column(each, axis, at) for each in held]
        if before is not None:
            here = _combined(run, operation, frame, before, here)
        lanes[at] = before = here
    for number, result in enumerate(operation.results):
        frame.values[result] = _behind(
            [lanes[at][number] for at in range(length)], axis, new=True
        )


def _held(operation: Operation, frame: Frame) -> list[Number]:
    held: list[Number] = []
    for each in operation.operands:
        value = frame.get(each)
        if not isinstance(value, Lanes | Floats):
            raise UndecidedError(f"{operation.name} of pointers", operation)
        held.append(value)
    return held


def _single(operation: Operation) -> Function | None:
    """The one function that a region consists of, when it takes the two lanes."""
    (block,) = operation.regions[0]
    if len(block.operations) != 2:
        return None
    only = block.operations[0]
    takes_both = set(only.operands) == set(block.arguments)
    return FUNCTIONS.get(only.name) if takes_both else None


def _folded(value: Floats, axis: int, combine: Function) -> Floats:
    """The same as for any region, for one that is a single function."""
    array = full(value) if value.array.shape[axis + 1] == 1 else value.array
    length = value.shape[axis]
    while length > 1:
        half = length // 2
        both = combine(
            array.narrow(axis + 1, 0, half), array.narrow(axis + 1, half, half)
        )
        if length % 2:
            rest = array.narrow(axis + 1, 2 * half, 1)
            both = torch.cat([both, rest], dim=axis + 1)
        array, length = both, half + length % 2
    doubt = value.unknown
    return Floats(
        (*value.shape[:axis], *value.shape[axis + 1 :]),
        value.element,
        array.select(axis + 1, 0),
        None if doubt is None else doubt.any(dim=axis + 1),
    )


def _combined(
    run: Run,
    operation: Operation,
    frame: Frame,
    left: list[Number],
    right: list[Number],
) -> list[Number]:
    """Run the region of a reduction on two arrays of lanes."""
    block = operation.regions[0][0]
    inner = frame.child()
    for number, value in zip(block.arguments, (*left, *right), strict=True):
        inner.values[number] = value
    shape = left[0].shape
    for each in block.operations[:-1]:
        if each.name == "arith.constant":
            floating = bool(each.types) and each.types[-1].floating
            of = float_types.constant_of if floating else arrays.constant_of
            inner.values[each.results[0]] = of(each, shape)
        else:
            run.step(each)(run, inner)
    results: list[Number] = []
    for number in block.operations[-1].operands:
        found = inner.get(number)
        if isinstance(found, Floats):
            results.append(float_lanes.expanded(found, shape))
        else:
            results.append(arrays.expanded(inner.lanes(number), shape))
    return results


def _columns(value: Number, axis: int, start: int, end: int) -> Number:
    if isinstance(value, Floats):
        return float_lanes.columns(value, axis, start, end)
    return arrays.columns(value, axis, start, end)


def _column(value: Number, axis: int, at: int) -> Number:
    if isinstance(value, Floats):
        return float_lanes.column(value, axis, at)
    return arrays.column(value, axis, at)


def _behind(values: list[Number], axis: int, *, new: bool) -> Number:
    """Values behind each other along an axis, or along a new one."""
    floats = [each for each in values if isinstance(each, Floats)]
    if floats:
        return float_lanes.joined(floats, axis, new=new)
    lanes = [each for each in values if isinstance(each, Lanes)]
    if new:
        return arrays.stacked(lanes, axis)
    left, right = lanes
    return arrays.concatenated(left, right, axis)
