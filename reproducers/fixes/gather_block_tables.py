"""Fixes of the kernel that gathers a step's block tables."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_V2 = ("vllm.v1.worker.gpu.block_table",)
_KERNEL = "_gather_block_tables_kernel"

FIXES = (
    # A group's row is as wide as its stride; the width that is passed is the first's.
    Fix(
        name="each group's own width for the rows that pad the batch",
        sites=(f"{_KERNEL}: table of the step", _KERNEL),
        edits=(
            SourceEdit(
                modules=_V2,
                function=_KERNEL,
                old="tl.range(0, max_num_blocks, BLOCK_SIZE)",
                new="tl.range(0, stride, BLOCK_SIZE)",
            ),
            SourceEdit(
                modules=_V2,
                function=_KERNEL,
                old="mask=offset < max_num_blocks",
                new="mask=offset < stride",
            ),
        ),
    ),
)
