"""Which operations of a kernel its addresses, masks, branches and stored integers need.

Everything else, floating-point arithmetic above all, is not executed in address mode.
In value mode, stored floats are needed as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from invariants.memory.ttir import Block, Function, Module, Operation

_MEMORY = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")
_ENDS = ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return")
# Operations that neither give a value nor change memory.
HARMLESS = frozenset(
    (
        *("gpu.barrier", "ttg.barrier", "tt.print", "tt.assert", "llvm.intr.assume"),
        *("tt.reduce.return", "tt.scan.return"),
    )
)
# Of those that have no results, or have to do with pointers or with regions.
_TOUCH_NOTHING = frozenset(
    (
        *("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans"),
        *("tt.addptr", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int"),
        *("arith.select", "tt.reduce", "tt.scan", "tt.return", "tt.call"),
        *HARMLESS,
    )
)


@dataclass(frozen=True, eq=False)
class Slice:
    """What has to run.

    Attributes:
        values: Numbers of values that are needed.
        operations: Operations that must run, by identity.
    """

    values: frozenset[int]
    operations: frozenset[int]

    def runs(self, operation: Operation) -> bool:
        """Whether an operation must run."""
        return id(operation) in self.operations


def operations_of(blocks: list[Block]) -> Iterator[Operation]:
    """All operations of blocks, those of nested regions included."""
    for block in blocks:
        for operation in block.operations:
            yield operation
            for region in operation.regions:
                yield from operations_of(region)


def opaque(operation: Operation) -> bool:
    """Whether an operation makes an integer of floats, which nobody computes here."""
    if operation.name in {"arith.cmpf", "arith.fptosi", "arith.fptoui"}:
        return True
    if operation.name == "tt.bitcast":
        return not (operation.types[0].integer or operation.types[0].pointer)
    return False


def slice_of(module: Module, *, values: bool = False) -> Slice:
    """Work backward from what touches memory or decides what runs.

    Args:
        module: The kernel.
        values: Whether floats are computed too.
    """
    needed = _Needed(values=values)
    size = -1
    while size != needed.size:
        size = needed.size
        for function in module.functions.values():
            for operation in reversed(list(operations_of(function.blocks))):
                needed.visit(operation, function)
    return Slice(frozenset(needed.values), frozenset(needed.operations))


class _Needed:
    """Values and operations found to be needed so far."""

    def __init__(self, *, values: bool) -> None:
        self._computes_floats = values
        self.values: set[int] = set()
        self.operations: set[int] = set()

    @property
    def size(self) -> int:
        return len(self.values) + len(self.operations)

    def visit(self, operation: Operation, function: Function) -> None:
        """Add what an operation needs, if it is needed itself."""
        name = operation.name
        wanted = bool(self.values.intersection(operation.results))
        if name in _MEMORY:
            self.operations.add(id(operation))
            self._memory(operation, wanted=wanted)
        elif name in {"scf.if", "scf.for", "scf.while"}:
            if wanted or self._runs_inside(operation):
                self.operations.add(id(operation))
                self._structured(operation)
        elif name in {"cf.cond_br", "cf.br"}:
            self.operations.add(id(operation))
            self._branch(operation, function)
        elif name in {"tt.return", "tt.call"}:
            self.operations.add(id(operation))
            self.values.update(operation.operands)
        elif name in _ENDS:
            self.operations.add(id(operation))
        elif (
            wanted
            or may_touch_memory(operation)
            or (self._computes_floats and _impure_assembly(operation))
        ):
            self.operations.add(id(operation))
            self._plain(operation)

    def _plain(self, operation: Operation) -> None:
        if operation.name in {"tt.reduce", "tt.scan"}:
            integers = all(kind.integer for kind in operation.types)
            if not integers and not self._computes_floats:
                return
            for inner in operations_of(operation.regions[0]):
                self.operations.add(id(inner))
                self.values.update(inner.operands)
        if self._computes_floats or not opaque(operation):
            self.values.update(operation.operands)

    def _memory(self, operation: Operation, *, wanted: bool) -> None:
        pointer, *others = operation.operands
        self.values.add(pointer)
        if operation.name == "tt.load":
            # The mask always; what masked lanes get, only where it is used.
            self.values.update(others if wanted else others[:1])
        elif operation.name == "tt.store":
            whole = self._computes_floats or _of_integers(operation)
            self.values.update(others if whole else others[1:])
        else:
            floating = not operation.types[-1].integer and not self._computes_floats
            self.values.update(others[1:] if floating else others)

    def _branch(self, operation: Operation, function: Function) -> None:
        if operation.name == "cf.cond_br":
            self.values.add(operation.operands[0])
        arguments = {block.label: block.arguments for block in function.blocks}
        for label, given in operation.successors:
            self._linked(zip(arguments[label], given, strict=True))

    def _structured(self, operation: Operation) -> None:
        if operation.name == "scf.if":
            self.values.add(operation.operands[0])
            for region in operation.regions:
                if operation.results:
                    self._linked(zip(operation.results, _yielded(region), strict=True))
        elif operation.name == "scf.for":
            self.values.update(operation.operands[:3])
            inner = operation.regions[0][0].arguments[1:]
            yielded = _yielded(operation.regions[0]) if inner else ()
            self._linked(
                zip(
                    operation.results,
                    inner,
                    operation.operands[3:],
                    yielded,
                    strict=True,
                ),
                ends=2,
            )
        else:
            before, after = operation.regions
            condition, *passed = _yielded(before)
            self.values.add(condition)
            self._linked(
                zip(operation.results, after[0].arguments, passed, strict=True), ends=2
            )
            self._linked(
                zip(
                    before[0].arguments,
                    operation.operands,
                    _yielded(after),
                    strict=True,
                )
            )

    def _linked(self, groups: Iterable[tuple[int, ...]], *, ends: int = 1) -> None:
        """Where one of the first `ends` of a group is needed, all of it is."""
        for group in groups:
            if self.values.intersection(group[:ends]):
                self.values.update(group)

    def _runs_inside(self, operation: Operation) -> bool:
        return any(
            id(inner) in self.operations
            for region in operation.regions
            for inner in operations_of(region)
            if inner.name not in _ENDS
        )


def may_touch_memory(operation: Operation) -> bool:
    """Whether an operation that nobody knows could do more than compute."""
    if operation.name in _TOUCH_NOTHING or operation.name in _MEMORY:
        return False
    if operation.name.startswith(("scf.", "cf.")) or operation.name in _ENDS:
        return False
    pointers = any(each.pointer or "!" in each.element for each in operation.types)
    return pointers or not operation.results or bool(operation.regions)


def _impure_assembly(operation: Operation) -> bool:
    """Whether it is assembly that does more than compute and wait for other kernels."""
    inline = operation.name == "tt.elementwise_inline_asm"
    pure = "pure = true" in operation.text or "griddepcontrol" in operation.text
    return inline and not pure


def _of_integers(operation: Operation) -> bool:
    """Whether a store writes integers, which later launches may use."""
    kind = operation.types[0]
    return kind.element.startswith("i") and kind.element[1:].isdigit()


def _yielded(region: list[Block]) -> tuple[int, ...]:
    return region[-1].operations[-1].operands if region[-1].operations else ()
