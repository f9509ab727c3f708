"""Loads, stores and atomics of value mode: judged as in address mode, and executed.

Floats go to and from memory as integers of their width, so what two programs store to
one element is compared bit by bit. A lane of which nothing is known is NaN in memory,
where a comparison of outputs finds it, and its bytes are noted as doubtful.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from invariants.memory import float_types, touch
from invariants.memory.float_lanes import doubt_of, truth_of
from invariants.memory.floats import Floats, either
from invariants.memory.frames import Frame
from invariants.memory.lanes import Array, Bools, Ints, Lanes
from invariants.memory.pointers import Pointer
from invariants.memory.regions import Region
from invariants.memory.stores import Target
from invariants.memory.ttir import Operation

if TYPE_CHECKING:
    from invariants.memory.execute import Run


def load(run: Run, operation: Operation, frame: Frame) -> None:
    """Judge a load of floats, and read what it may read."""
    (result,) = operation.results
    access = touch.access_of(operation, frame, mask_at=1, write=False)
    wanted = result in run.kernel.slice.values
    usable = access.judged(run, frame, wanted=wanted)
    if not wanted:
        return
    kind, mask = operation.types[0], access.mask
    if usable is not None and usable.all() and (mask is None or mask.unknown is None):
        usable = None
    source = _Source(access.pointer, kind.element, usable, mask)
    if kind.element not in float_types.DTYPES:
        run.doubt(f"numbers of type {kind.element} are not computed", operation)
        frame.values[result] = float_types.not_known("f32", kind.shape)
        return
    other = frame.floats(operation.operands[2]) if len(operation.operands) > 2 else None
    frame.values[result] = source.read(other, len(frame.programs))


@dataclass(frozen=True, eq=False)
class _Source:
    """Where floats are read from.

    Attributes:
        element: Their dtype.
        usable: Lanes that may be read, None for all.
        mask: The load's own mask.
    """

    pointer: Pointer
    element: str
    usable: Bools | None
    mask: Lanes | None

    def read(self, other: Floats | None, rows: int) -> Floats:
        """The floats; `other`, or nothing known, where the mask keeps from reading."""
        shape = self.pointer.shape
        bits, doubt = self._bits(rows)
        array = float_types.of_bits(bits, self.element)
        if self.usable is None:
            return self._result(array, doubt)
        usable = float_types.tensor_of(self.usable)
        rank = len(shape)
        if other is None:
            return self._result(array, either(doubt, ~usable))
        array = torch.where(usable, array, other.array)
        if other.unknown is not None:
            doubt = either(doubt, other.unknown & ~usable)
        # An active lane that must not be read is not what `other` stands for.
        if self.mask is None:
            doubt = either(doubt, ~usable)
        else:
            kept = truth_of(self.mask, rank) & ~usable
            doubt = either(doubt, kept if bool(kept.any()) else None)
            doubt = either(doubt, doubt_of(self.mask, rank))
        return self._result(array, doubt)

    def _result(self, array: torch.Tensor, doubt: torch.Tensor | None) -> Floats:
        if doubt is not None:
            array = torch.where(doubt, torch.full_like(array, torch.nan), array)
        return Floats(self.pointer.shape, self.element, array, doubt)

    def _bits(self, rows: int) -> tuple[Array, torch.Tensor | None]:
        """Integers of the floats' width, and lanes whose content is not known."""
        pointer = self.pointer
        if pointer.which is None:
            region = pointer.regions[0]
            offset = pointer.offset.dense()
            found, strange = self._of_region(region, offset, self.usable)
            return found, None if strange is None else float_types.tensor_of(strange)
        full = (rows, *pointer.shape)
        offset = np.broadcast_to(pointer.offset.dense(), full)
        result = np.zeros(full, dtype=f"int{pointer.element_bytes * 8}")
        doubt = np.ones(full, dtype=np.bool_)
        for at, region in enumerate(pointer.regions):
            here = np.broadcast_to(pointer.which, full) == at
            if self.usable is not None:
                here = here & self.usable
            found, strange = self._of_region(region, offset, here)
            np.copyto(result, found, where=here)
            np.copyto(doubt, False if strange is None else strange, where=here)
        if self.usable is not None:
            doubt = doubt & self.usable
        return result, float_types.tensor_of(doubt) if doubt.any() else None

    def _of_region(
        self, region: Region | None, offset: Ints, usable: Bools | None
    ) -> tuple[Array, Bools | None]:
        size, unit = self.pointer.element_bytes, self.pointer.unit_bytes
        if region is None or len(region.storage.content) < size:
            shape = np.broadcast_shapes(
                offset.shape, () if usable is None else usable.shape
            )
            return np.zeros(shape, f"int{size * 8}"), np.ones(shape, np.bool_)
        start = region.base - region.storage.base
        strange: Bools | None = None
        if unit == size and start % size == 0:
            place = offset + start // size if start else offset
        else:
            at = offset * unit + start
            crooked = at % size != 0
            strange = crooked if bool(crooked.any()) else None
            place = at // size
        source = region.storage.as_integers(size * 8)
        if usable is not None:
            # Where a lane must not read there may be no memory: it reads elsewhere.
            place = np.broadcast_to(
                place, np.broadcast_shapes(place.shape, usable.shape)
            )
            some = place[np.broadcast_to(usable, place.shape)]
            if not len(some):
                return np.zeros(place.shape, source.dtype), None
            place = np.where(usable, place, some[0])
        found = source.take(place, mode="clip")
        if region.storage.doubtful is not None:
            first = np.clip(place * size, 0, len(region.storage.content) - 1)
            held = region.storage.doubtful[first]
            strange = held if strange is None else strange | held
        if strange is not None and usable is not None:
            strange = strange & usable
        return found, strange if strange is None or strange.any() else None


def store(run: Run, operation: Operation, frame: Frame) -> None:
    """Judge a store, and let it land."""
    access = touch.access_of(operation, frame, mask_at=2, write=True)
    usable = access.judged(run, frame, wanted=True)
    target = Target(operation, frame.programs, access.pointer, usable)
    value = frame.get(operation.operands[1])
    sure = frame.certain and (access.mask is None or access.mask.unknown is None)
    if not sure:
        run.doubt("whether a store takes place is not known", operation)
    if isinstance(value, Floats):
        array, unknown = value.array, value.unknown
        if unknown is not None:
            array = torch.where(unknown, torch.full_like(array, torch.nan), array)
        doubt = None if unknown is None else unknown.numpy()
        bits = float_types.bits_of(array)
        run.stores.put(target, bits, doubt, certain=sure, element=value.element)
        return
    lanes = frame.lanes(operation.operands[1])
    if lanes.unknown is not None:
        kept = lanes.unknown if usable is None else lanes.unknown & usable
        if bool(kept.any()):
            run.doubt("an integer that is not known is stored", operation)
    run.stores.write(target, lanes, certain=sure)


def atomic(run: Run, operation: Operation, frame: Frame) -> None:
    """Judge an atomic of floats, and apply it in the order of programs and lanes."""
    kind = operation.types[-1]
    how = operation.text.split(",")[0].strip()
    result = operation.results[0] if operation.results else 0
    access = touch.access_of(operation, frame, mask_at=2, write=True)
    usable = access.judged(run, frame, wanted=True)
    target = Target(operation, frame.programs, access.pointer, usable)
    known = how in {"fadd", "exch"} and operation.name == "tt.atomic_rmw"
    if not known or kind.element not in float_types.DTYPES:
        run.doubt(
            f"{operation.name} {how} of {kind.element} is not computed", operation
        )
        if result in run.kernel.slice.values:
            frame.values[result] = float_types.not_known(kind.element, kind.shape)
        return
    value = frame.floats(operation.operands[1])
    given = value.array.expand(target.full)
    unknown = None if value.unknown is None else value.unknown.expand(target.full)
    old = torch.full(target.full, torch.nan).to(value.array.dtype)
    doubt = torch.ones(target.full, dtype=torch.bool)
    size = access.pointer.element_bytes
    for lanes, at, region in target.lanes():
        if not len(region.storage.content) or bool((at % size).any()):
            run.doubt("an atomic has to do with what is not known", operation)
            continue
        here = float_types.tensor_of(lanes)
        content = float_types.of_bits(
            region.storage.as_integers(size * 8), kind.element
        )
        numbers = given[here]
        before = torch.empty_like(numbers)
        for turn in _turns(at):
            place = float_types.tensor_of(at[turn] // size)
            index = float_types.tensor_of(turn)
            before[index] = content[place]
            after = numbers[index]
            content[place] = before[index] + after if how == "fadd" else after
        old[here] = before
        doubt[here] = False
        held = region.storage.doubtful
        strange = unknown is not None and bool(unknown[here].any())
        if strange or (held is not None and bool(held[at].any())):
            run.doubt("an atomic has to do with what is not known", operation)
    if result in run.kernel.slice.values:
        frame.values[result] = Floats(
            kind.shape, kind.element, old, doubt if bool(doubt.any()) else None
        )


def _turns(at: Ints) -> list[Ints]:
    """Lanes in groups that touch no element twice; each element's lanes in order."""
    order = np.argsort(at, kind="stable")
    held = at[order]
    first = np.ones(len(held), dtype=np.bool_)
    first[1:] = held[1:] != held[:-1]
    starts = np.flatnonzero(first)
    turn = np.arange(len(held)) - np.repeat(starts, np.diff([*starts, len(held)]))
    return [order[turn == each] for each in range(int(turn.max(initial=-1)) + 1)]
