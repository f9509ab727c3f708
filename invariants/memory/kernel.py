"""A kernel made ready to run: its operations, which of them run, and their source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from invariants.memory.causes import Origin, cause_of, origins_of
from invariants.memory.frames import Frame, Value
from invariants.memory.slicing import Slice, operations_of, slice_of
from invariants.memory.source_text import expression_at
from invariants.memory.ttir import Module, Operation, Type

if TYPE_CHECKING:
    from invariants.memory.execute import Run

# Rows of one pass over a loop's trips; more are cut, so that memory stays flat.
ROWS_MAX = 1 << 15
# Lanes of a value when floats are computed; each of a kernel's values may have as many.
LANES_MAX = 1 << 20

Step = Callable[["Run", Frame], None]
Plan = tuple[tuple[Step, ...], Operation | None]


@dataclass(eq=False)
class Kernel:
    """A lowered kernel.

    Attributes:
        name: Its qualified name without module.
        values: Whether floats are computed.
        steps: How to run each operation, by its identity, as far as known yet.
        plans: What of each block runs in order, and its last operation, by identity.
        constants: Values that are the same in every launch, by number.
    """

    name: str
    module: Module
    values: bool = False
    steps: dict[int, Step] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    constants: dict[int, Value] = field(default_factory=dict)

    @cached_property
    def slice(self) -> Slice:
        """What of it has to run."""
        return slice_of(self.module, values=self.values)

    @cached_property
    def _origins(self) -> dict[int, list[Origin]]:
        return origins_of(self.module)

    def cause(
        self, number: int, computed: Callable[[Operation], bool]
    ) -> Operation | None:
        """The nearest operation that is not computed, of those before a value."""
        return cause_of(self._origins, number, computed)

    @cached_property
    def rows_max(self) -> int:
        """Programs, or trips of a loop, that run together: memory stays flat."""
        if not self.values:
            return ROWS_MAX
        largest = max(
            math.prod(kind.shape)
            for function in self.module.functions.values()
            for operation in operations_of(function.blocks)
            for kind in (*operation.types, Type((), "i32"))
        )
        return max(LANES_MAX // largest, 1)

    def source(self, operation: Operation) -> tuple[str, int, str]:
        """File, line and expression of the source of an operation."""
        frames = self.module.frames(operation.location)
        frame = next(
            (each for each in frames if "triton/language" not in each.file),
            frames[0] if frames else None,
        )
        if frame is None:
            return "", 0, operation.name
        text = expression_at(frame.file, frame.line, frame.column, operation.name)
        return frame.file, frame.line, text or operation.name
