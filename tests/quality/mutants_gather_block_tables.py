"""Faults planted in the kernel that gathers block tables, and in what fills rows."""

from fuzz.edits import SourceEdit
from tests.quality.mutant import Mutant

V2 = ("vllm.v1.worker.gpu.block_table",)
BUFFERS = ("vllm.v1.worker.gpu.buffer_utils",)
KERNEL = "_gather_block_tables_kernel"
WRITER = "_apply_write_kernel"


def _mutant(
    name: str,
    function: str,
    *edits: tuple[str, str],
    invariants: tuple[str, ...],
    modules: tuple[str, ...] = V2,
    size: int = 480,
) -> Mutant:
    return Mutant(
        name=name,
        origin="wired",
        edits=tuple(
            SourceEdit(modules=modules, function=function, old=old, new=new)
            for old, new in edits
        ),
        invariants=invariants,
        cases=100,
        size=size,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "the batch's row for the state row",
        KERNEL,
        ("+ req_idx * stride", "+ batch_idx * stride"),
        invariants=("TABLES-ACCESS", "TABLES-ROWS"),
    ),
    _mutant(
        "whole rows, with what was there before",
        KERNEL,
        (
            "num_blocks = tl.load(group_num_blocks_ptr + req_idx)",
            "num_blocks = tl.load(block_table_strides + group_id).to(tl.int32)",
        ),
        invariants=("TABLES-TAIL",),
        size=560,
    ),
    _mutant(
        "counts of the first group",
        KERNEL,
        (
            "num_blocks_ptr + group_id * num_blocks_stride",
            "num_blocks_ptr + 0 * num_blocks_stride",
        ),
        invariants=("TABLES-ROWS", "TABLES-TAIL", "TABLES-ACCESS"),
        size=600,
    ),
    _mutant(
        "a padding row for the batch's last",
        KERNEL,
        ("if batch_idx >= num_reqs:", "if batch_idx > num_reqs:"),
        invariants=("TABLES-ACCESS",),
    ),
    _mutant(
        "padding names block 1",
        KERNEL,
        (
            "tl.store(dst_row_ptr + offset, 0, mask",
            "tl.store(dst_row_ptr + offset, 1, mask",
        ),
        invariants=("TABLES-PADDING",),
    ),
    _mutant(
        "rows beside the tables that are given",
        KERNEL,
        ("dst_block_table_ptr + batch_idx * stride", "dst_block_table_ptr + stride"),
        invariants=("TABLES-ACCESS", "TABLES-STORES", "TABLES-ROWS"),
    ),
    _mutant(
        "new blocks replace the first ones",
        "BlockTables.append_block_ids",
        (
            "start = self.num_blocks.np[i, req_index] if not overwrite else 0",
            "start = 0",
        ),
        invariants=("TABLES-ROWS",),
    ),
    _mutant(
        "a new request's blocks behind those of the former one",
        "BlockTables.append_block_ids",
        (
            "start = self.num_blocks.np[i, req_index] if not overwrite else 0",
            "start = self.num_blocks.np[i, req_index]",
        ),
        invariants=("TABLES-ROWS", "TABLES-RAISES", "TABLES-ACCESS"),
        size=560,
    ),
    _mutant(
        "writes start as many columns late as there were writes before",
        WRITER,
        (
            "tl.load(write_starts_ptr + pid)",
            "tl.load(write_starts_ptr + pid) + pid",
        ),
        invariants=("TABLES-ROWS", "TABLES-ACCESS", "TABLES-STORES"),
        modules=BUFFERS,
        size=560,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (V2, KERNEL),
    (V2, "BlockTables.append_block_ids"),
    (V2, "BlockTables.gather_block_tables"),
    (BUFFERS, WRITER),
)
