"""Reductions and scans of integers, with whatever region combines two lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invariants.memory import arrays
from invariants.memory.frames import Frame
from invariants.memory.lanes import Lanes
from invariants.memory.ttir import Operation

if TYPE_CHECKING:
    from invariants.memory.execute import Run


def reduce(run: Run, operation: Operation, frame: Frame) -> None:
    """`tt.reduce` of integers, with any region."""
    if not all(kind.integer for kind in operation.types):
        run.unknown_results(operation, frame)
        return
    axis = arrays.attribute(operation, "axis")
    held = [frame.lanes(each) for each in operation.operands]
    results = _folded(run, operation, frame, held, axis)
    for number, value in zip(operation.results, results, strict=True):
        frame.values[number] = value


def scan(run: Run, operation: Operation, frame: Frame) -> None:
    """`tt.scan` of integers, with any region."""
    if not all(kind.integer for kind in operation.types):
        run.unknown_results(operation, frame)
        return
    axis = arrays.attribute(operation, "axis")
    backward = "reverse = true" in operation.text
    held = [frame.lanes(each) for each in operation.operands]
    length = held[0].shape[axis]
    order = range(length)[:: -1 if backward else 1]
    columns: dict[int, list[Lanes]] = {}
    before: list[Lanes] | None = None
    for at in order:
        here = [arrays.column(each, axis, at) for each in held]
        before = (
            here if before is None else _combined(run, operation, frame, before, here)
        )
        columns[at] = before
    for number, each in enumerate(operation.results):
        frame.values[each] = arrays.stacked(
            [columns[at][number] for at in range(length)], axis
        )


def _folded(
    run: Run, operation: Operation, frame: Frame, held: list[Lanes], axis: int
) -> list[Lanes]:
    """Combine halves until one is left; regions of reductions are associative."""
    length = held[0].shape[axis]
    while length > 1:
        half = length // 2
        low = [arrays.columns(each, axis, 0, half) for each in held]
        high = [arrays.columns(each, axis, half, 2 * half) for each in held]
        both = _combined(run, operation, frame, low, high)
        if length % 2:
            rest = [arrays.columns(each, axis, 2 * half, length) for each in held]
            both = [
                arrays.concatenated(a, b, axis) for a, b in zip(both, rest, strict=True)
            ]
        held, length = both, half + length % 2
    return [arrays.column(each, axis, 0) for each in held]


def _combined(
    run: Run, operation: Operation, frame: Frame, left: list[Lanes], right: list[Lanes]
) -> list[Lanes]:
    """Run the region of a reduction on two arrays of lanes."""
    block = operation.regions[0][0]
    inner = frame.child()
    for number, value in zip(block.arguments, (*left, *right), strict=True):
        inner.values[number] = value
    shape = left[0].shape
    for each in block.operations[:-1]:
        if each.name == "arith.constant":
            inner.values[each.results[0]] = arrays.constant_of(each, shape)
        else:
            run.step(each)(run, inner)
            for number in each.results:
                # Scalars in the text; of what is not known, that is all it says.
                inner.values[number] = arrays.expanded(inner.lanes(number), shape)
    results = [inner.lanes(each) for each in block.operations[-1].operands]
    return [arrays.expanded(each, shape) for each in results]
