"""Runs a lowered kernel over its whole grid at once.

Every value has one row per running program. A branch that programs take differently
runs once per side, on the rows that take it. A loop whose trips do not depend on each
other runs as one pass over all trips of all programs, each a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from invariants.memory import arrays, folds, loops, touch
from invariants.memory.findings import Finding, Undecided
from invariants.memory.flow import dominators, topological
from invariants.memory.frames import (
    Frame,
    Rows,
    UndecidedError,
    Value,
    joined,
    known_end,
    picked,
)
from invariants.memory.integers import BINARY_OPERATIONS
from invariants.memory.kernel import Kernel, Plan, Step
from invariants.memory.lanes import Lanes, constant, of_array, unknown
from invariants.memory.regions import Memory
from invariants.memory.slicing import HARMLESS, may_touch_memory, opaque
from invariants.memory.stores import Stores
from invariants.memory.ttir import Block, Function, Operation, Type

_ENDS = ("tt.return", "cf.br", "cf.cond_br", "scf.yield", "scf.condition")


class Run:
    """One launch: the values of its arguments, and what comes of it."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, int, int], memory: Memory
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.memory = memory
        self.findings: dict[tuple[str, str], Finding] = {}
        self.undecided: dict[tuple[str, str], Undecided] = {}
        self.accesses = 0
        self.lanes = 0
        self.stores = Stores()

    def start(self, arguments: list[Value | None]) -> None:
        """Run every program of the grid."""
        function = self.kernel.module.kernel
        total = self.grid[0] * self.grid[1] * self.grid[2]
        frame = Frame(
            programs=np.arange(total, dtype=np.int64),
            constants=self.kernel.constants,
        )
        for number, value in zip(function.parameters, arguments, strict=True):
            if value is not None:
                frame.values[number] = value
        try:
            for part in self._parts(frame):
                self.function(function, part)
        except UndecidedError as error:
            self.doubt(error.reason, error.operation)
        for race in self.stores.races(self.kernel, self.grid):
            self.findings.setdefault((race.kind, race.expression), race)

    def _parts(self, frame: Frame) -> Iterator[Frame]:
        """All programs at once, or some after the others where floats take memory."""
        total = len(frame.programs)
        size = self.kernel.rows_max if self.kernel.values else total
        if total <= size:
            yield from (frame,) * (total > 0)
            return
        for first in range(0, total, size):
            yield frame.child(np.arange(first, min(first + size, total)))

    def doubt(self, reason: str, operation: Operation | None) -> None:
        """Note that something could not be decided."""
        file, line, _ = (
            ("", 0, "") if operation is None else self.kernel.source(operation)
        )
        place = f"{file}:{line}" if file else ""
        self.undecided.setdefault(
            (reason, place),
            Undecided(kernel=self.kernel.name, reason=reason, place=place),
        )

    # --- functions and blocks ---------------------------------------------------------

    def depends(
        self, what: str, number: int, operation: Operation
    ) -> tuple[str, Operation]:
        """Why something is not known, and the operation to name for it."""
        cause = None if self.kernel.values else self.kernel.cause(number, computed)
        if cause is None:
            return f"{what} depends on what is not computed", operation
        reason = f"{what} depends on {cause.name}, which is not computed"
        return reason, cause if self.kernel.source(cause)[1] else operation

    def function(
        self, function: Function, frame: Frame
    ) -> list[tuple[Rows, list[Value]]]:
        """Run a function's blocks; give the rows and values of each return."""
        blocks = {block.label: block for block in function.blocks}
        if len(function.blocks) == 1:
            end = self.block(function.blocks[0], frame)
            return [(np.arange(len(frame.programs)), self._values(end, frame))]
        rows = len(frame.programs)
        entries: dict[str, list[tuple[Rows, list[Value | None]]]] = {
            function.blocks[0].label: [(np.arange(rows), [])]
        }
        returned: list[tuple[Rows, list[Value]]] = []
        frames: dict[str, tuple[Frame, Rows]] = {}
        nearest = dominators(function.blocks)
        for label in topological(function.blocks):
            arrived = entries.get(label)
            if not arrived:
                continue
            index = np.sort(np.concatenate([each[0] for each in arrived]))
            if not len(index):
                continue
            home, home_rows = frames.get(nearest[label], (frame, np.arange(rows)))
            take = None
            if len(index) != len(home_rows):
                take = np.searchsorted(home_rows, index)
            here = home.child(take)
            block = blocks[label]
            self._enter(block, here, index, arrived)
            frames[label] = (here, index)
            end = self.block(block, here)
            if end is None:
                last = block.operations[-1]
                raise UndecidedError(f"{last.name} ends a block and is not known", last)
            if end.name == "tt.return":
                returned.append((index, self._values(end, here)))
                continue
            self._leave(end, here, index, entries)
        return returned

    def _values(self, end: Operation | None, frame: Frame) -> list[Value]:
        return [] if end is None else [frame.get(each) for each in end.operands]

    def _enter(
        self,
        block: Block,
        frame: Frame,
        index: Rows,
        arrived: list[tuple[Rows, list[Value | None]]],
    ) -> None:
        for at, argument in enumerate(block.arguments):
            pieces = [
                (np.searchsorted(index, rows), given[at]) for rows, given in arrived
            ]
            known = [(rows, value) for rows, value in pieces if value is not None]
            if known and len(known) == len(pieces):
                frame.values[argument] = joined(len(index), known)

    def _leave(
        self,
        end: Operation,
        frame: Frame,
        index: Rows,
        entries: dict[str, list[tuple[Rows, list[Value | None]]]],
    ) -> None:
        if end.name == "cf.br":
            sides = [np.arange(len(index))]
        else:
            condition = frame.lanes(end.operands[0])
            if condition.unknown is not None and condition.unknown.any():
                raise UndecidedError(*self.depends("a branch", end.operands[0], end))
            self.wrapped_branch(condition, end)
            truth = np.broadcast_to(condition.dense(), (len(index),))
            sides = [np.flatnonzero(truth), np.flatnonzero(~truth)]
        for (label, given), rows in zip(end.successors, sides, strict=True):
            wanted = [self.maybe(frame, each) for each in given]
            values = [None if v is None else picked(v, rows) for v in wanted]
            entries.setdefault(label, []).append((index[rows], values))

    def wrapped_branch(self, condition: Lanes, operation: Operation) -> None:
        """Where exact numbers would take the other side, what runs is chance."""
        if condition.exact is not None:
            self.doubt("a branch's condition has wrapped", operation)

    def maybe(self, frame: Frame, number: int) -> Value | None:
        """A value, None when nothing needs it."""
        if number not in self.kernel.slice.values:
            return None
        return frame.get(number)

    def block(self, block: Block, frame: Frame) -> Operation | None:
        """Run a block's operations; give the last, which says where to go."""
        plan = self.kernel.plans.get(id(block))
        if plan is None:
            plan = self.kernel.plans[id(block)] = self._planned(block)
        steps, end = plan
        for step in steps:
            step(self, frame)
        return end

    def _planned(self, block: Block) -> Plan:
        """What of a block must run; what depends on no launch is computed at once."""
        constants = self.kernel.constants
        steps: list[Step] = []
        for operation in block.operations:
            if operation.name in _ENDS:
                return tuple(steps), operation
            if not self.kernel.slice.runs(operation):
                continue
            step = self.step(operation)
            if _constant(operation, constants):
                frame = Frame(programs=np.zeros(1, dtype=np.int64), constants=constants)
                step(self, frame)
                constants.update((n, frame.values[n]) for n in operation.results)
            else:
                steps.append(step)
        return tuple(steps), None

    def unknown_results(self, operation: Operation, frame: Frame) -> None:
        """Integers of an operation that is not computed here."""
        count = len(operation.results)
        kinds = operation.types[-count:] if count else ()
        if may_touch_memory(operation) or len(kinds) < count:
            self.doubt(f"{operation.name} is not known", operation)
        kinds += (Type((), "i32"),) * (count - len(kinds))
        for result, kind in zip(operation.results, kinds, strict=True):
            if result not in self.kernel.slice.values:
                continue
            if kind.pointer:
                raise UndecidedError(f"{operation.name} gives pointers", operation)
            if operation.name.startswith("tt.") and len(operation.types) == 1:
                # The one type may be an operand's: the result's shape is not known.
                raise UndecidedError(f"{operation.name} is not known", operation)
            if operation.name == "arith.cmpf":
                kind = Type(kind.shape, "i1")  # noqa: PLW2901
            frame.values[result] = unknown(kind.bits, kind.shape)

    def step(self, operation: Operation) -> Step:
        """How to run an operation; made once per kernel."""
        step = self.kernel.steps.get(id(operation))
        if step is None:
            make = _made_for_values if self.kernel.values else _made
            step = self.kernel.steps[id(operation)] = make(operation)
        return step


def _constant(operation: Operation, constants: Mapping[int, Value]) -> bool:
    """Whether an operation gives the same in every launch."""
    pure = operation.name in BINARY_OPERATIONS or operation.name in arrays.OPERATIONS
    known = all(each in constants for each in operation.operands)
    return pure and known and all(kind.integer for kind in operation.types)


def _made(operation: Operation) -> Step:
    step = _of_integers(operation)
    return step or (lambda run, frame: run.unknown_results(operation, frame))


def _made_for_values(operation: Operation) -> Step:
    # Imported here, for address mode needs no torch.
    from invariants.memory import float_operations

    step = float_operations.made(operation) or _of_integers(operation)
    return step or float_operations.not_computed(operation)


def _of_integers(operation: Operation) -> Step | None:
    """How to run what has to do with integers, pointers and control."""
    apply = BINARY_OPERATIONS.get(operation.name)
    if apply is not None:
        left, right = operation.operands
        (result,) = operation.results

        def binary(_: Run, frame: Frame) -> None:
            frame.values[result] = apply(
                operation, frame.lanes(left), frame.lanes(right)
            )

        return binary
    make = arrays.OPERATIONS.get(operation.name)
    if make is not None:
        return make(operation)
    control = {
        "scf.for": loops.loop,
        "scf.while": loops.loop_while,
        "scf.if": _branch,
        "tt.load": touch.load,
        "tt.store": touch.store,
        "tt.atomic_rmw": touch.atomic,
        "tt.atomic_cas": touch.atomic,
        "tt.call": _call,
        "tt.reduce": folds.reduce,
        "tt.scan": folds.scan,
        "tt.get_program_id": _program_id,
        "tt.get_num_programs": _num_programs,
    }.get(operation.name)
    if control is None:
        return None
    return lambda run, frame: control(run, operation, frame)


def known(operation: Operation) -> bool:
    """Whether address mode knows an operation, or need not: it hands on, or waits."""
    structural = operation.name in _ENDS or operation.name in HARMLESS
    return structural or _of_integers(operation) is not None


def computed(operation: Operation) -> bool:
    """Whether address mode gives what an operation of integers gives."""
    if operation.name in {"tt.reduce", "tt.scan"}:
        return all(kind.integer for kind in operation.types)
    return not opaque(operation) and _of_integers(operation) is not None


def _branch(run: Run, operation: Operation, frame: Frame) -> None:
    """`scf.if`."""
    condition = frame.lanes(operation.operands[0])
    wanted = [
        (at, result)
        for at, result in enumerate(operation.results)
        if result in run.kernel.slice.values
    ]
    rows = len(frame.programs)
    doubt = condition.unknown
    if doubt is not None and bool(doubt.any()):
        if run.kernel.values:
            raise UndecidedError("a branch depends on what is not known", operation)
        for region in operation.regions:
            run.block(region[0], frame.child(certain=False))
        for at, result in wanted:
            kind = operation.types[at]
            if kind.pointer:
                raise UndecidedError("a branch on what is not computed", operation)
            frame.values[result] = unknown(kind.bits, kind.shape)
        return
    run.wrapped_branch(condition, operation)
    truth = condition.dense()
    if truth.shape[0] == 1 or bool(truth.all()) or not bool(truth.any()):
        side = 0 if bool(truth.flat[0]) else 1
        if side < len(operation.regions):
            inner = frame.child()
            end = run.block(operation.regions[side][0], inner)
            for at, result in wanted:
                frame.values[result] = inner.get(known_end(end, operation).operands[at])
        return
    sides = (np.flatnonzero(truth), np.flatnonzero(~truth))
    pieces: list[list[tuple[Rows, Value]]] = [[] for _ in wanted]
    for region, index in zip(operation.regions, sides, strict=False):
        inner = frame.child(index)
        end = run.block(region[0], inner)
        for held, (at, _) in zip(pieces, wanted, strict=True):
            held.append((index, inner.get(known_end(end, operation).operands[at])))
    for held, (_, result) in zip(pieces, wanted, strict=True):
        frame.values[result] = joined(rows, held)


def _call(run: Run, operation: Operation, frame: Frame) -> None:
    """A device function that was not inlined."""
    name = operation.text.split("(")[0].lstrip("@").strip('"')
    function = run.kernel.module.functions[name]
    inner = Frame(
        programs=frame.programs, constants=frame.constants, certain=frame.certain
    )
    for number, given in zip(function.parameters, operation.operands, strict=True):
        value = run.maybe(frame, given)
        if value is not None:
            inner.values[number] = value
    returned = run.function(function, inner)
    for at, result in enumerate(operation.results):
        if result in run.kernel.slice.values:
            pieces = [(rows, values[at]) for rows, values in returned]
            frame.values[result] = joined(len(frame.programs), pieces)


def _program_id(run: Run, operation: Operation, frame: Frame) -> None:
    """Which program a row belongs to."""
    x, y, z = run.grid
    axis = operation.text.strip()[0]
    if {"x": x, "y": y, "z": z}[axis] == 1:
        frame.values[operation.results[0]] = constant(0, 32)
        return
    ids = {
        "x": frame.programs % x,
        "y": frame.programs // x % y,
        "z": frame.programs // (x * y),
    }[axis]
    frame.values[operation.results[0]] = of_array(ids, 32, ())


def _num_programs(run: Run, operation: Operation, frame: Frame) -> None:
    """Size of the grid along an axis."""
    size = run.grid["xyz".index(operation.text.strip()[0])]
    frame.values[operation.results[0]] = constant(size, 32)
