"""What of a kernel is not understood here, and what of its launches it would decide.

Nothing runs: the operations that an address, a mask or a branch depends on are found
in the kernel's text, back to the nearest ones that address mode does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from invariants.memory import float_operations
from invariants.memory.causes import Origin, origins_of
from invariants.memory.execute import computed, known
from invariants.memory.kernel import Kernel
from invariants.memory.slicing import may_touch_memory, operations_of
from invariants.memory.touch import MASK_AT
from invariants.memory.ttir import Operation

# Which operand of an operation decides what, besides addresses and masks.
_DECIDING = {"cf.cond_br": (0, 1), "scf.if": (0, 1), "scf.for": (0, 3)}


@dataclass(frozen=True)
class Gap:
    """An operation that is not computed, and what depends on it.

    Attributes:
        operation: Its name.
        what: ``an address``, ``a mask``, ``a branch``, or ``memory`` where it may
            itself touch memory.
        place: ``file:line`` of its source, "" when unknown.
    """

    operation: str
    what: str
    place: str


def gaps(kernel: Kernel) -> tuple[Gap, ...]:
    """What may leave a launch of a kernel undecided, in address mode."""
    origins = origins_of(kernel.module)
    found: dict[tuple[str, str], Gap] = {}
    for function in kernel.module.functions.values():
        for operation in operations_of(function.blocks):
            for what, number in _decided_by(operation):
                for cause in _causes(number, origins):
                    gap = _gap(kernel, cause, what)
                    found.setdefault((gap.operation, gap.what), gap)
            if may_touch_memory(operation) and not known(operation):
                gap = _gap(kernel, operation, "memory")
                found.setdefault((gap.operation, gap.what), gap)
    return tuple(found.values())


def unknown_operations(kernel: Kernel) -> tuple[str, ...]:
    """Names of operations that neither mode knows, whatever depends on them; sorted."""
    names = {
        operation.name
        for function in kernel.module.functions.values()
        for operation in operations_of(function.blocks)
        if not known(operation) and float_operations.made(operation) is None
    }
    return tuple(sorted(names))


def _gap(kernel: Kernel, operation: Operation, what: str) -> Gap:
    file, line, _ = kernel.source(operation)
    return Gap(operation.name, what, f"{file}:{line}" if file else "")


def _decided_by(operation: Operation) -> Iterator[tuple[str, int]]:
    """Values that decide where an operation accesses memory, or what runs."""
    mask_at = MASK_AT.get(operation.name)
    if mask_at is not None:
        yield "an address", operation.operands[0]
        for number in operation.operands[mask_at : mask_at + 1]:
            yield "a mask", number
    elif operation.name in _DECIDING:
        first, end = _DECIDING[operation.name]
        for number in operation.operands[first:end]:
            yield "a branch", number
    elif operation.name == "scf.condition":
        yield "a branch", operation.operands[0]


def _causes(number: int, origins: dict[int, list[Origin]]) -> Iterator[Operation]:
    """All nearest operations before a value that are not computed."""
    seen = {number}
    queue = [number]
    for each in queue:
        for operation, before in origins.get(each, ()):
            if operation is not None and not computed(operation):
                yield operation
                continue
            queue += [n for n in dict.fromkeys(before) if n not in seen]
            seen.update(before)
