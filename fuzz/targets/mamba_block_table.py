"""The aligned Mamba block table, its kernels in the memory checker.

What is run is `fuzz.targets._aligned_windows`. The windows' kernel may store to neither
table nor lengths; the kernels of V2's rows find their tables through addresses.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._aligned_windows import HOME, absent, observed
from fuzz.targets._checked import findings_of
from invariants.mamba_table_values import Case, Observation
from invariants.memory.launches import Log, checked_launches
from invariants.memory.regions import Memory

if TYPE_CHECKING:
    import torch

__all__ = ["CONTROLS", "RUNTIME", "absent", "run"]

RUNTIME = Runtime(platform="cpu", triton="jit")

# The memory checker is no part of a script that stands alone: there kernels run in the
# interpreter. These laws only the checker judges.
ALONE = (
    "fuzz.targets._interpreted_windows",
    ("GDN-ALIGN-EXACT", "GDN-ALIGN-ACCESS", "GDN-ALIGN-STORES"),
)

# Planted beside what a fix of the window or of the tables' widths would change, so that
# a patched tree does not lose its controls.
CONTROLS = (
    Control(
        name="mamba_block_table: mode none hands out the next ids",
        origin="contract",
        edits=(
            SourceEdit(
                modules=(HOME,),
                function="mamba_get_block_table_tensor",
                old="return block_table\n",
                new="return block_table + 1\n",
            ),
        ),
        invariant="GDN-TABLE-IDENTITY",
        cases=150,
    ),
    Control(
        name="mamba_block_table: new blocks land at the row's start",
        origin="wired",
        edits=(
            SourceEdit(
                modules=("vllm.v1.worker.block_table",),
                function="BlockTable.append_row",
                old="start = self.num_blocks_per_row[row_idx]",
                new="start = 0",
            ),
        ),
        invariant="GDN-ALIGN-OWNED",
        cases=100,
    ),
)


def run(case: Case) -> Observation:
    """Run one case on the tree of this process."""
    kernels = CheckedKernels()
    seen = observed(case, kernels)
    logs = kernels.logs
    return replace(
        seen,
        findings=tuple(each for log in logs for each in findings_of(log)),
        undecided=tuple(each for log in logs for each in log.undecided),
    )


class CheckedKernels:
    """Runs kernels in the memory checker.

    Attributes:
        logs: Of all launches.
    """

    def __init__(self) -> None:
        self.logs: list[Log] = []

    def window(
        self,
        module: ModuleType,  # noqa: ARG002 - the interpreter's need
        inputs: "tuple[torch.Tensor, ...]",
    ) -> AbstractContextManager[None]:
        """The kernel that cuts windows out of a table."""
        memory = Memory()
        for each in inputs:
            memory.read_only(each)
        return self._checked(memory)

    def rows(
        self,
        modules: tuple[ModuleType, ...],  # noqa: ARG002 - the interpreter's need
        tables: "tuple[torch.Tensor, ...]",
    ) -> AbstractContextManager[None]:
        """Those that write and gather V2's rows, which they find through addresses."""
        memory = Memory()
        for each in tables:
            memory.table(each, name="block table")
        return self._checked(memory)

    @contextmanager
    def _checked(self, memory: Memory) -> Iterator[None]:
        with checked_launches(memory) as log:
            yield
        self.logs.append(log)
