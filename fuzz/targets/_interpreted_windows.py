"""The aligned Mamba block table, its kernels in Triton's interpreter.

What scripts run that stand alone; runs of the project have the memory checker.
"""

from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

from fuzz.targets._aligned_windows import observed
from fuzz.targets._interpreted_kernels import interpreted_kernels
from invariants.mamba_table_values import Case, Observation

if TYPE_CHECKING:
    import torch


def run(case: Case) -> Observation:
    """Run one case on the tree of this process."""
    return observed(case, InterpretedKernels())


class InterpretedKernels:
    """Runs kernels in the interpreter, one program after the other."""

    @staticmethod
    def window(
        module: ModuleType,
        inputs: "tuple[torch.Tensor, ...]",  # noqa: ARG004 - the checker's need
    ) -> AbstractContextManager[None]:
        """The kernel that cuts windows out of a table; it may touch nothing else."""
        return interpreted_kernels(module)

    @staticmethod
    def rows(
        modules: tuple[ModuleType, ...],
        tables: "tuple[torch.Tensor, ...]",  # noqa: ARG004 - the checker's need
    ) -> AbstractContextManager[None]:
        """Those that write and gather V2's rows, which they find through addresses."""
        return interpreted_kernels(*modules, pointer_tables=True)
