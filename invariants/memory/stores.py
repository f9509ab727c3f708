"""Integers in memory: read for addresses, stored, updated, and raced for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from invariants.memory.findings import Finding
from invariants.memory.lane_checks import program_ids
from invariants.memory.lanes import (
    Array,
    Bools,
    Ints,
    Lanes,
    either,
    of_array,
    unknown,
)
from invariants.memory.pointers import Pointer
from invariants.memory.pools import sparse_flags
from invariants.memory.regions import Region, Storage
from invariants.memory.ttir import Operation

if TYPE_CHECKING:
    from invariants.memory.kernel import Kernel


@dataclass(frozen=True, eq=False)
class _Written:
    """What one store wrote: parallel arrays.

    Attributes:
        element: Dtype of floats, whose bits the values then are; "" of integers.
    """

    operation: Operation
    region: Region
    addresses: Ints
    programs: Ints
    values: Ints
    element_bytes: int
    element: str

    def shown(self, value: int) -> str:
        """What was stored, as text."""
        if not self.element:
            return str(value)
        from invariants.memory.float_types import shown

        return shown(value, self.element)


@dataclass(frozen=True, eq=False)
class Target:
    """Where an operation stores.

    Attributes:
        programs: ``[rows]`` linear program ids.
        usable: Lanes that may be stored to, None for all.
    """

    operation: Operation
    programs: Ints
    pointer: Pointer
    usable: Bools | None

    @property
    def full(self) -> tuple[int, ...]:
        """Shape of an array of all lanes."""
        return (len(self.programs), *self.pointer.shape)

    def reaches(self, lanes: Bools | None) -> bool:
        """Whether any of these lanes may be stored to."""
        if lanes is None or self.usable is None:
            return lanes is not None
        return bool((lanes & self.usable).any())

    def lanes(self) -> Iterator[tuple[Bools, Ints, Region]]:
        """Lanes per region, with the byte of the region's storage that each is at."""
        active = np.broadcast_to(
            True if self.usable is None else self.usable, self.full
        )
        offset = np.broadcast_to(self.pointer.offset.dense(), self.full)
        for lanes, region in _by_region(self.pointer, active):
            if region is not None:
                start = region.base - region.storage.base
                yield lanes, offset[lanes] * self.pointer.unit_bytes + start, region


@dataclass(eq=False)
class Stores:
    """What the stores of one launch wrote."""

    _written: list[_Written] = field(default_factory=list)

    def read(
        self, pointer: Pointer, usable: Bools | None, other: Lanes | None, rows: int
    ) -> Lanes:
        """Integers at the usable lanes; elsewhere `other`, or nothing known."""
        bits, shape = pointer.element_bits, pointer.shape
        region = pointer.regions[0]
        size = pointer.element_bytes
        if usable is None and pointer.which is None and region is not None:
            at = pointer.offset.dense() * pointer.unit_bytes + (
                region.base - region.storage.base
            )
            known = len(region.storage.content) > 0
            if known and (size == 1 or not bool((at % size).any())):
                found = region.storage.as_integers(bits)[at // size]
                return replace(
                    of_array(found, bits, shape),
                    unknown=_doubt(region.storage, at),
                )
        full = (rows, *shape)
        offset = np.broadcast_to(pointer.offset.dense(), full)
        active = np.broadcast_to(True if usable is None else usable, full)
        values: Array = np.zeros(full, dtype=np.bool_ if bits == 1 else np.int64)
        strange = ~active
        if other is not None:
            values[...] = other.dense()
            strange = np.zeros(full, dtype=np.bool_)
            if other.unknown is not None:
                strange |= other.unknown & ~active
        for lanes, each in _by_region(pointer, active):
            if each is None:
                strange |= lanes
                continue
            at = offset[lanes] * pointer.unit_bytes + (each.base - each.storage.base)
            inside = (at >= 0) & (at + size <= len(each.storage.content))
            source = each.storage.as_integers(bits)
            place = np.where(inside & (at % size == 0), at // size, 0)
            values[lanes] = source[place] if len(source) else 0
            doubt = ~inside | (at % size != 0)
            held = _doubt(each.storage, np.where(inside, at, 0))
            if held is not None:
                doubt = doubt | held
            strange[lanes] = doubt
        result = of_array(values, bits, shape)
        return replace(result, unknown=strange if strange.any() else None)

    def write(self, target: Target, value: Lanes, *, certain: bool) -> None:
        """Let integers land; what is not known makes its bytes doubtful."""
        self.put(target, value.dense(), value.unknown, certain=certain)

    def put(
        self,
        target: Target,
        values: Array,
        strange: Bools | None,
        *,
        certain: bool,
        element: str = "",
    ) -> None:
        """Let integers land, or floats as integers of their width.

        Args:
            target: Where.
            values: Broadcastable to all lanes.
            strange: Lanes that are not known; their bytes become doubtful.
            certain: Whether the store is known to take place.
            element: Of floats their dtype; what is not known of them lands as NaN.
        """
        full, size = target.full, target.pointer.element_bytes
        numbers = np.broadcast_to(values, full)
        doubt = np.broadcast_to(False if strange is None else strange, full)
        rows = target.programs.reshape(-1, *(1,) * len(target.pointer.shape))
        owners = np.broadcast_to(rows, full)
        for lanes, at, region in target.lanes():
            stored = numbers[lanes].astype(np.int64)
            unsure = doubt[lanes] | (not certain) | (at % size != 0)
            _mark(region.storage, at, size, unsure)
            content = region.storage.as_integers(target.pointer.element_bits)
            landing = certain & (at % size == 0) if element else ~unsure
            if len(content):
                content[at[landing] // size] = stored[landing].astype(content.dtype)
            self._written.append(
                _Written(
                    operation=target.operation,
                    region=region,
                    addresses=at[~unsure] + region.storage.base,
                    programs=owners[lanes][~unsure],
                    values=stored[~unsure],
                    element_bytes=size,
                    element=element,
                )
            )

    @staticmethod
    def blur(pointer: Pointer) -> None:
        """Note that floats, which are not computed, were stored through a pointer."""
        low = pointer.offset.low * pointer.unit_bytes
        high = pointer.offset.high * pointer.unit_bytes + pointer.element_bytes
        for region in pointer.regions:
            if region is not None:
                start = region.base - region.storage.base
                first, last = max(low, 0), min(high, region.size_bytes)
                region.storage.blur(start + first, start + max(first, last))

    @staticmethod
    def update(target: Target, operands: list[Lanes], *, certain: bool) -> Lanes:
        """Apply an atomic lane by lane, in the order of programs.

        Args:
            target: Where.
            operands: With what.
            certain: Whether all of its lanes are known to run.

        Returns:
            What was there before each.
        """
        operation, pointer = target.operation, target.pointer
        bits, size = pointer.element_bits, pointer.element_bytes
        places = list(target.lanes())
        # What a mask left out of a load is not known, and not wanted here either.
        vague = not certain or any(
            target.reaches(each.unknown) for each in (*operands, pointer.offset)
        )
        if vague or any(_vague(region, at, size) for _, at, region in places):
            for _, at, region in places:
                _mark(region.storage, at, size, np.ones(at.shape, dtype=np.bool_))
            return unknown(bits, pointer.shape)
        how = operation.text.split(",")[0].strip()
        given = [np.broadcast_to(each.dense(), target.full) for each in operands]
        old = np.zeros(target.full, dtype=np.int64)
        for lanes, at, region in places:
            content = region.storage.as_integers(bits)
            numbers = [each[lanes] for each in given]
            before = np.zeros(len(at), dtype=np.int64)
            for lane, place in enumerate(at // size):
                before[lane] = content[place]
                operand = [int(each[lane]) for each in numbers]
                content[place] = _updated(
                    operation.name, how, int(before[lane]), operand, bits
                )
            old[lanes] = before
        return of_array(old, bits, pointer.shape)

    def races(self, kernel: Kernel, grid: tuple[int, int, int]) -> Iterator[Finding]:
        """Elements that two programs stored different integers to."""
        by_storage: dict[int, list[_Written]] = {}
        for each in self._written:
            by_storage.setdefault(id(each.region.storage), []).append(each)
        for group in by_storage.values():
            found = _race(group)
            if found is None:
                continue
            written, address, programs, values = found
            file, line, expression = kernel.source(written.operation)
            element = (address - written.region.base) // written.element_bytes
            first, second = programs
            yield Finding(
                kind="stored twice",
                kernel=kernel.name,
                file=file,
                line=line,
                expression=expression,
                tensor=written.region.name,
                write=True,
                program=program_ids(second, grid),
                lane=(),
                value=values[1],
                wrapped=values[1],
                limit=0,
                lanes=1,
                arithmetic=(
                    f"element {element} gets {written.shown(values[0])} of program "
                    f"{first} and {written.shown(values[1])} of program {second}"
                ),
            )


def _race(
    group: list[_Written],
) -> tuple[_Written, int, tuple[int, int], tuple[int, int]] | None:
    addresses = np.concatenate([each.addresses for each in group])
    programs = np.concatenate([each.programs for each in group])
    values = np.concatenate([each.values for each in group])
    source = np.concatenate(
        [np.full(len(each.addresses), at) for at, each in enumerate(group)]
    )
    if not len(addresses):
        return None
    order = np.lexsort((programs, addresses))
    a, p, v = addresses[order], programs[order], values[order]
    # A program's last store to an element is what it leaves there.
    last = np.ones(len(a), dtype=np.bool_)
    last[:-1] = (a[1:] != a[:-1]) | (p[1:] != p[:-1])
    a, p, v, order = a[last], p[last], v[last], order[last]
    clash = (a[1:] == a[:-1]) & (p[1:] != p[:-1]) & (v[1:] != v[:-1])
    if not bool(clash.any()):
        return None
    at = int(np.flatnonzero(clash)[0])
    written = group[int(source[order[at + 1]])]
    return (
        written,
        int(a[at]),
        (int(p[at]), int(p[at + 1])),
        (int(v[at]), int(v[at + 1])),
    )


def _by_region(
    pointer: Pointer, active: Bools
) -> Iterator[tuple[Bools, Region | None]]:
    if pointer.which is None:
        yield active, pointer.regions[0]
        return
    which = np.broadcast_to(pointer.which, active.shape)
    for at, region in enumerate(pointer.regions):
        lanes = active & (which == at)
        if bool(lanes.any()):
            yield lanes, region


def _doubt(storage: Storage, at: NDArray[np.int64]) -> Bools | None:
    held: Bools | None = None if storage.doubtful is None else storage.doubtful[at]
    for first, last in storage.blurred:
        held = either(held, (at >= first) & (at < last))
    return held if held is not None and held.any() else None


def _vague(region: Region, at: Ints, size: int) -> bool:
    """Whether any of these elements is not known, or not a whole one."""
    storage = region.storage
    if not len(storage.content) or bool((at % size).any()):
        return True
    return _doubt(storage, at) is not None


def _mark(storage: Storage, at: Ints, size: int, unsure: Bools) -> None:
    """Note which bytes are no longer known, and which are known again."""
    if not len(storage.content):
        return
    if storage.blurred and not bool(unsure.all()):
        # A run may be as long as the pool: it is split only for what becomes known.
        storage.sharpen()
    if storage.doubtful is None:
        if not bool(unsure.any()):
            return
        storage.doubtful = sparse_flags(len(storage.content))
    for byte in range(size):
        storage.doubtful[at + byte] = unsure


def _updated(name: str, how: str, before: int, given: list[int], bits: int) -> int:
    if name == "tt.atomic_cas":
        return given[1] if before == given[0] else before
    mask = (1 << bits) - 1
    value = given[0]
    result = {
        "add": before + value,
        "and": before & value,
        "or": before | value,
        "xor": before ^ value,
        "exch": value,
        "max": max(before, value),
        "min": min(before, value),
        "umax": max(before & mask, value & mask),
        "umin": min(before & mask, value & mask),
    }[how]
    low = -(1 << (bits - 1))
    return (result - low) % (1 << bits) + low
