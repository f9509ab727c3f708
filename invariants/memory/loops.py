"""Loops: all trips in one pass where they do not depend on each other, else in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from invariants.memory.arrays import moved_pointer
from invariants.memory.frames import (
    Frame,
    Rows,
    UndecidedError,
    Value,
    joined,
    known_end,
    picked,
)
from invariants.memory.integers import add, multiply
from invariants.memory.lanes import Ints, Lanes, constant, of_array, taken
from invariants.memory.pointers import Pointer
from invariants.memory.slicing import operations_of
from invariants.memory.ttir import Block, Operation

if TYPE_CHECKING:
    from invariants.memory.execute import Run
    from invariants.memory.kernel import Kernel

TRIPS_MAX = 1_000_000


@dataclass(frozen=True, eq=False)
class _Carried:
    """A value that goes from trip to trip.

    Attributes:
        argument: Its number inside the loop.
        start: Number of its first value.
        yielded: Number of what a trip hands on.
        result: Its number after the loop.
        advance: The addition that moves it by the same amount each trip, if one does.
    """

    argument: int
    start: int
    yielded: int
    result: int
    advance: Operation | None


@dataclass(frozen=True, eq=False)
class _Counter:
    """Trips of each row, and the value that counts them."""

    operation: Operation
    trips: Ints
    low: Lanes
    step: Lanes

    def value(self, rows: Rows | None, trip: Lanes) -> Lanes:
        """The counting value at a trip, for some rows or all."""
        low, step = self.low, self.step
        if rows is not None:
            low, step = taken(low, rows), taken(step, rows)
        moved = multiply(self.operation, replace(trip, bits=low.bits), step)
        return add(self.operation, low, moved)


def loop(run: Run, operation: Operation, frame: Frame) -> None:
    """`scf.for`."""
    counter = _counter(run, operation, frame)
    block = operation.regions[0][0]
    needed = run.kernel.slice.values
    arguments = block.arguments[1:]
    yielded = block.operations[-1].operands if arguments else ()
    carried = tuple(
        _Carried(argument, start, value, result, _advance(block, argument, value))
        for argument, start, value, result in zip(
            arguments, operation.operands[3:], yielded, operation.results, strict=True
        )
        if argument in needed
    )
    steady = all(each.advance is not None for each in carried)
    if steady and not _depends_on_itself(operation, run.kernel):
        _all_trips(run, block, frame, counter, carried)
    else:
        _trip_by_trip(run, block, frame, counter, carried)


def _counter(run: Run, operation: Operation, frame: Frame) -> _Counter:
    bounds = [frame.lanes(each) for each in operation.operands[:3]]
    for number, each in zip(operation.operands, bounds, strict=False):
        if each.unknown is not None and bool(each.unknown.any()):
            raise UndecidedError(*run.depends("a loop's bound", number, operation))
        if each.exact is not None:
            raise UndecidedError("a loop's bounds have wrapped", operation)
    low, high, step = (each.dense() for each in bounds)
    if operation.text.startswith("unsigned ") and bool(((low < 0) | (high < 0)).any()):
        raise UndecidedError("an unsigned loop's bound is negative", operation)
    if bool((step <= 0).any()):
        raise UndecidedError("a loop's step is not positive", operation)
    trips = np.maximum(-((low - high) // step), 0)
    return _Counter(
        operation=operation,
        trips=np.broadcast_to(trips, (len(frame.programs),)),
        low=bounds[0],
        step=bounds[2],
    )


def _advance(block: Block, argument: int, value: int) -> Operation | None:
    """The addition that advances a carried value by the same amount each trip."""
    inside = {
        result for inner in operations_of([block]) for result in inner.results
    } | set(block.arguments)
    for each in block.operations:
        if value not in each.results or each.name not in {"arith.addi", "tt.addptr"}:
            continue
        left, right = each.operands
        if left == argument and right not in inside:
            return each
        if each.name == "arith.addi" and right == argument and left not in inside:
            return replace(each, operands=(right, left))
    return None


def _depends_on_itself(operation: Operation, kernel: Kernel) -> bool:
    """Whether a trip may load what an earlier one stored, or store over it."""
    loaded = False
    written = 0
    for inner in operations_of(operation.regions[0]):
        if inner.name in {"tt.atomic_rmw", "tt.atomic_cas", "tt.call"}:
            return True
        if inner.name == "tt.store":
            written += kernel.values or inner.types[0].element.startswith("i")
        if inner.name == "tt.load" and inner.results[0] in kernel.slice.values:
            loaded = True
    return written > 1 or (written == 1 and loaded)


def _all_trips(
    run: Run,
    block: Block,
    frame: Frame,
    counter: _Counter,
    carried: tuple[_Carried, ...],
) -> None:
    for rows, at in _passes(counter.trips, run.kernel.rows_max):
        inner = frame.child(rows)
        trip = of_array(at, 64, ())
        inner.values[block.arguments[0]] = counter.value(rows, trip)
        for each in carried:
            inner.values[each.argument] = _after(inner, each, trip)
        run.block(block, inner)
    trip = of_array(counter.trips.copy(), 64, ())
    for each in carried:
        frame.values[each.result] = _after(frame, each, trip)


def _passes(trips: Ints, rows_max: int) -> Iterator[tuple[Rows, Ints]]:
    """Rows and trip numbers, all trips of all rows, cut into passes."""
    ends = np.cumsum(trips)
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, rows_max):
        at = np.arange(first, min(first + rows_max, total))
        rows = np.searchsorted(ends, at, side="right")
        yield rows, at - (ends - trips)[rows]


def _after(frame: Frame, carried: _Carried, trip: Lanes) -> Value:
    """A steadily advanced value after some trips."""
    advance = carried.advance
    assert advance is not None
    begin, by = frame.get(carried.start), frame.lanes(advance.operands[1])
    ones = (1,) * len(by.shape)
    bits = by.bits if isinstance(begin, Lanes) else 64
    count = replace(
        trip,
        bits=bits,
        shape=by.shape,
        parts=tuple(part.reshape(part.shape[0], *ones) for part in trip.parts),
    )
    moved = multiply(advance, count, replace(by, bits=bits))
    if isinstance(begin, Lanes):
        return add(advance, begin, moved)
    assert isinstance(begin, Pointer)
    return moved_pointer(advance, begin, moved)


def _trip_by_trip(
    run: Run,
    block: Block,
    frame: Frame,
    counter: _Counter,
    carried: tuple[_Carried, ...],
) -> None:
    trips = counter.trips
    total = len(trips)
    rows = np.arange(total)
    last = int(trips.max(initial=0))
    if last > TRIPS_MAX:
        raise UndecidedError(f"a loop of {last} trips", counter.operation)
    state = [frame.get(each.start) for each in carried]
    done: list[list[tuple[Rows, Value]]] = [[] for _ in carried]
    for at in range(last):
        alive = trips[rows] > at
        if not alive.all():
            gone, stay = np.flatnonzero(~alive), np.flatnonzero(alive)
            for held, value in zip(done, state, strict=True):
                held.append((rows[gone], picked(value, gone)))
            state = [picked(value, stay) for value in state]
            rows = rows[stay]
        inner = frame.child(None if len(rows) == total else rows)
        inner.values[block.arguments[0]] = counter.value(rows, constant(at, 64))
        for each, value in zip(carried, state, strict=True):
            inner.values[each.argument] = value
        run.block(block, inner)
        state = [inner.get(each.yielded) for each in carried]
    for held, value, each in zip(done, state, carried, strict=True):
        if len(rows):
            held.append((rows, value))
        frame.values[each.result] = joined(total, held)


def loop_while(run: Run, operation: Operation, frame: Frame) -> None:
    """`scf.while`."""
    before, after = (region[0] for region in operation.regions)
    needed = run.kernel.slice.values
    total = len(frame.programs)
    rows = np.arange(total)
    state: dict[int, Value] = {
        argument: frame.get(start)
        for argument, start in zip(before.arguments, operation.operands, strict=True)
        if argument in needed
    }
    done: dict[int, list[tuple[Rows, Value]]] = {
        result: [] for result in operation.results if result in needed
    }
    for _ in range(TRIPS_MAX):
        test = frame.child(None if len(rows) == total else rows)
        test.values.update(state)
        end = run.block(before, test)
        condition, *passed = known_end(end, operation).operands
        truth = test.lanes(condition)
        if truth.unknown is not None and bool(truth.unknown.any()):
            raise UndecidedError(*run.depends("a loop", condition, operation))
        on = np.broadcast_to(truth.dense(), (len(rows),))
        stop, stay = np.flatnonzero(~on), np.flatnonzero(on)
        for result, value in zip(operation.results, passed, strict=True):
            if result in done and len(stop):
                done[result].append((rows[stop], picked(test.get(value), stop)))
        if not len(stay):
            break
        body = test.child(None if len(stay) == len(rows) else stay)
        for argument, value in zip(after.arguments, passed, strict=True):
            if argument in needed:
                body.values[argument] = picked(test.get(value), stay)
        close = run.block(after, body)
        state = {
            argument: body.get(value)
            for argument, value in zip(
                before.arguments, known_end(close, operation).operands, strict=True
            )
            if argument in needed
        }
        rows = rows[stay]
    else:
        raise UndecidedError(f"a loop of more than {TRIPS_MAX} trips", operation)
    for result, held in done.items():
        frame.values[result] = joined(total, held)
