"""Rows of programs that run together, and the values they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from invariants.memory import floats
from invariants.memory.floats import Floats
from invariants.memory.lanes import Lanes, merged, taken
from invariants.memory.pointers import Pointer
from invariants.memory.ttir import Operation

Rows = NDArray[np.intp]
Value = Lanes | Pointer | Floats


class UndecidedError(Exception):
    """Something that decides what runs is not known; says what."""

    def __init__(self, reason: str, operation: Operation | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operation = operation


@dataclass(eq=False)
class Frame:
    """Rows that run together, and the values they have.

    Attributes:
        programs: ``[rows]`` linear program ids.
        constants: Values that are the same in every launch.
        parent: Where values that are not defined here come from.
        take: The parent's row of each row here; None for all of them in order.
        certain: Whether these rows are known to run.
    """

    programs: NDArray[np.int64]
    constants: Mapping[int, Value]
    parent: Frame | None = None
    take: Rows | None = None
    certain: bool = True
    values: dict[int, Value] = field(default_factory=dict)

    def get(self, number: int) -> Value:
        """A value by its number, for the rows of this frame."""
        value = self.values.get(number)
        if value is not None:
            return value
        value = self.constants.get(number)
        if value is not None:
            return value
        if self.parent is None:
            raise UndecidedError("a value that nothing computes is needed")
        value = self.parent.get(number)
        if self.take is not None:
            value = picked(value, self.take)
        self.values[number] = value
        return value

    def lanes(self, number: int) -> Lanes:
        """A value that is an integer."""
        value = self.get(number)
        if not isinstance(value, Lanes):
            raise UndecidedError("a pointer or a float is used as an integer")
        return value

    def floats(self, number: int) -> Floats:
        """A value that is a floating-point number."""
        value = self.get(number)
        if not isinstance(value, Floats):
            raise UndecidedError("a pointer or an integer is used as a float")
        return value

    def child(self, take: Rows | None = None, *, certain: bool = True) -> Frame:
        """A frame within this one, for all of its rows or some."""
        programs = self.programs if take is None else self.programs[take]
        return Frame(
            programs=programs,
            constants=self.constants,
            parent=self,
            take=take,
            certain=self.certain and certain,
        )


def known_end(end: Operation | None, operation: Operation) -> Operation:
    """The last operation of a region, which says what it hands on."""
    if end is None:
        raise UndecidedError(f"how a region of {operation.name} ends", operation)
    return end


def picked(value: Value, rows: Rows) -> Value:
    """A value for some rows."""
    if isinstance(value, Lanes):
        return taken(value, rows)
    if isinstance(value, Floats):
        return floats.taken(value, rows)
    return value.taken(rows)


def joined(rows: int, pieces: list[tuple[Rows, Value]]) -> Value:
    """One value from pieces for different rows."""
    pieces = [piece for piece in pieces if len(piece[0])]
    first = pieces[0][1]
    if len(pieces) == 1 and len(pieces[0][0]) == rows:
        return first
    if isinstance(first, Lanes):
        return merged(
            rows, [(index, each) for index, each in pieces if isinstance(each, Lanes)]
        )
    if isinstance(first, Floats):
        return floats.merged(
            rows, [(index, each) for index, each in pieces if isinstance(each, Floats)]
        )
    pointers = [(index, each) for index, each in pieces if isinstance(each, Pointer)]
    if any(each.unit_bytes != first.unit_bytes for _, each in pointers):
        raise UndecidedError("pointers of different units meet")
    offset = merged(rows, [(index, each.offset) for index, each in pointers])
    regions = tuple(region for _, each in pointers for region in each.regions)
    if all(region is regions[0] for region in regions):
        return replace(first, offset=offset, regions=regions[:1], which=None)
    which = np.zeros((rows, *first.shape), dtype=np.int64)
    base = 0
    for index, each in pointers:
        which[index] = base + (0 if each.which is None else each.which)
        base += len(each.regions)
    return replace(first, offset=offset, regions=regions, which=which)
