"""Loads, stores and atomics: judged, and executed where integers are concerned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from invariants.memory.accesses import judge_access, without_unknown
from invariants.memory.frames import Frame, UndecidedError
from invariants.memory.lanes import Bools, Lanes, either, unknown
from invariants.memory.pointers import Place, Pointer
from invariants.memory.stores import Target
from invariants.memory.ttir import Operation

if TYPE_CHECKING:
    from invariants.memory.execute import Run

# Which operand is the mask of an access.
MASK_AT = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2, "tt.atomic_cas": 3}


@dataclass(frozen=True, eq=False)
class Access:
    """One access: where, under which mask, and for what."""

    operation: Operation
    pointer: Pointer
    mask: Lanes | None
    mask_at: int
    write: bool

    def judged(self, run: Run, frame: Frame, *, wanted: bool) -> Bools | None:
        """Note what is wrong with it; give the lanes that may be executed.

        Args:
            run: Where findings are noted.
            frame: Its rows.
            wanted: Whether it will be executed, so that its lanes matter.
        """
        place = Place(
            kernel=run.kernel,
            grid=run.grid,
            programs=frame.programs,
            operation=self.operation,
            certain=frame.certain,
            write=self.write,
        )
        verdict = judge_access(
            place, self.pointer, without_unknown(self.mask), wanted=wanted
        )
        run.accesses += 1
        run.lanes += verdict.lanes
        for finding in verdict.findings:
            run.findings.setdefault((finding.kind, finding.expression), finding)
        for doubt in verdict.doubts:
            addressed = doubt == "its address"
            number = self.operation.operands[0 if addressed else self.mask_at]
            run.doubt(*run.depends(doubt, number, self.operation))
        if verdict.usable is None and wanted and self.mask is not None:
            return self.mask.dense()
        return verdict.usable


def access_of(
    operation: Operation, frame: Frame, *, mask_at: int, write: bool
) -> Access:
    """The access of an operation whose mask, if any, is that operand."""
    pointer = frame.get(operation.operands[0])
    if not isinstance(pointer, Pointer):
        raise UndecidedError("a number is used as a pointer", operation)
    masked = len(operation.operands) > mask_at
    mask = frame.lanes(operation.operands[mask_at]) if masked else None
    if mask is not None and mask.bits != 1:
        # Of an operation that is not known, nor what it gives.
        mask = unknown(1, mask.shape)
    # Without a mask, whether the access runs at all is what is not known.
    return Access(operation, pointer, mask, mask_at if masked else 0, write)


def load(run: Run, operation: Operation, frame: Frame) -> None:
    """Judge a load, and read what addresses may need."""
    (result,) = operation.results
    wanted = result in run.kernel.slice.values
    access = access_of(operation, frame, mask_at=MASK_AT[operation.name], write=False)
    usable = access.judged(run, frame, wanted=wanted)
    if not wanted:
        return
    kind, pointer, mask = operation.types[0], access.pointer, access.mask
    if not pointer.integer:
        frame.values[result] = unknown(kind.bits, kind.shape)
        return
    other = None
    if len(operation.operands) > 2:
        other = frame.lanes(operation.operands[2])
    value = run.stores.read(pointer, usable, other, len(frame.programs))
    if mask is not None and mask.unknown is not None:
        value = replace(value, unknown=either(mask.unknown, value.unknown))
    frame.values[result] = value


def store(run: Run, operation: Operation, frame: Frame) -> None:
    """Judge a store, and let integers land."""
    access = access_of(operation, frame, mask_at=MASK_AT[operation.name], write=True)
    pointer, mask = access.pointer, access.mask
    usable = access.judged(run, frame, wanted=pointer.integer)
    if pointer.integer:
        value = frame.lanes(operation.operands[1])
        certain = frame.certain and (mask is None or mask.unknown is None)
        target = Target(operation, frame.programs, pointer, usable)
        run.stores.write(target, value, certain=certain)
    else:
        run.stores.blur(pointer)


def atomic(run: Run, operation: Operation, frame: Frame) -> None:
    """Judge an atomic; integers are updated, in the order of programs."""
    mask_at = MASK_AT[operation.name]
    access = access_of(operation, frame, mask_at=mask_at, write=True)
    pointer = access.pointer
    usable = access.judged(run, frame, wanted=True)
    (result,) = operation.results or (0,)
    wanted = result in run.kernel.slice.values
    if not pointer.integer:
        kind = operation.types[-1]
        run.stores.blur(pointer)
        if wanted:
            frame.values[result] = unknown(kind.bits, kind.shape)
        return
    operands = [frame.lanes(each) for each in operation.operands[1:mask_at]]
    target = Target(operation, frame.programs, pointer, usable)
    certain = frame.certain and (access.mask is None or access.mask.unknown is None)
    old = run.stores.update(target, operands, certain=certain)
    if wanted:
        frame.values[result] = old
