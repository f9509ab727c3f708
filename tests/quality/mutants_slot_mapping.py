"""Faults planted in the kernels that map tokens to slots, and in their tables."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

V1 = ("vllm.v1.worker.block_table",)
V2 = ("vllm.v1.worker.gpu.block_table",)
# The kernel of V1 is a method since it can be warmed up.
V1_KERNELS = ("ComputeSlotMappingKernel.kernel", "_compute_slot_mapping_kernel")
V2_KERNEL = "_compute_slot_mappings_kernel"


def _v1(
    name: str, old: str, new: str, *invariants: str, origin: Origin = "wired"
) -> Mutant:
    return Mutant(
        name=name,
        origin=origin,
        edits=tuple(
            SourceEdit(modules=V1, function=function, old=old, new=new)
            for function in V1_KERNELS
        ),
        invariants=invariants,
        cases=300,
        size=560,
    )


def _v2(
    name: str, old: str, new: str, *invariants: str, origin: Origin = "wired"
) -> Mutant:
    return Mutant(
        name=name,
        origin=origin,
        edits=(SourceEdit(modules=V2, function=V2_KERNEL, old=old, new=new),),
        invariants=invariants,
        cases=300,
        size=560,
    )


def _tables(name: str, method: str, old: str, new: str, *invariants: str) -> Mutant:
    edit = SourceEdit(modules=V1, function=f"BlockTable.{method}", old=old, new=new)
    return Mutant(
        name=name,
        origin="wired",
        edits=(edit,),
        invariants=invariants,
        cases=200,
        size=720,
    )


WRITTEN: tuple[Mutant, ...] = (
    _v1(
        "the row of the next request",
        "row_offset = req_idx * block_table_stride",
        "row_offset = (req_idx + 1) * block_table_stride",
        "SLOT-MAP-ACCESS",
        "SLOT-MAP-VALUES",
    ),
    _v1(
        "slots in 32 bits",
        "slot_ids = tl.where(is_local, slot_ids, PAD_ID)",
        "slot_ids = tl.where(is_local, slot_ids, PAD_ID).to(tl.int32)",
        "SLOT-MAP-VALUES",
    ),
    _v1(
        "the buffer's rest keeps its slots",
        "for i in range(num_tokens, max_num_tokens, BLOCK_SIZE):",
        "for i in range(num_tokens + 1, max_num_tokens, BLOCK_SIZE):",
        "SLOT-MAP-PADDING",
    ),
    _v1(
        "the padding does not stop at the buffer's end",
        "mask=offsets < max_num_tokens",
        "mask=offsets <= max_num_tokens",
        "SLOT-MAP-ACCESS",
    ),
    _v1(
        "only as many tokens as a program takes at a time",
        "for i in range(start_idx, end_idx, BLOCK_SIZE):",
        "for i in range(start_idx, min(end_idx, start_idx + BLOCK_SIZE), BLOCK_SIZE):",
        "SLOT-MAP-VALUES",
    ),
    _v1(
        "another rank's tokens",
        "% TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK",
        "% TOTAL_CP_WORLD_SIZE != TOTAL_CP_RANK",
        "SLOT-MAP-VALUES",
    ),
    _tables(
        "a moved row keeps its old blocks",
        "move_row",
        "block_table_np[tgt, :num_blocks] = block_table_np[src, :num_blocks]",
        "pass",
        "SLOT-MAP-VALUES",
    ),
    _tables(
        "rows change places by half",
        "swap_row",
        "self.block_table.np[src_tgt] = self.block_table.np[tgt_src]",
        "self.block_table.np[src] = self.block_table.np[tgt]",
        "SLOT-MAP-VALUES",
    ),
    _tables(
        "the batch's last row is not brought over",
        "commit_block_table",
        "self.block_table.copy_to_gpu(num_reqs)",
        "self.block_table.copy_to_gpu(num_reqs - 1)",
        "SLOT-MAP-VALUES",
    ),
    _v2(
        "the batch's row for the state row",
        "block_table_ptr + req_state_idx * block_table_stride",
        "block_table_ptr + batch_idx * block_table_stride",
        "SLOT-MAP-ACCESS",
        "SLOT-MAP-VALUES",
    ),
    _v2(
        "the first group's block size for all",
        "tl.load(block_sizes + group_id)",
        "tl.load(block_sizes)",
        "SLOT-MAP-ACCESS",
        "SLOT-MAP-VALUES",
    ),
    _v2(
        "padding begins a token late",
        "for i in range(actual_num_tokens, max_num_tokens, TRITON_BLOCK_SIZE):",
        "for i in range(actual_num_tokens + 1, max_num_tokens, TRITON_BLOCK_SIZE):",
        "SLOT-MAP-PADDING",
    ),
    _v2(
        "a group's slots begin at the next group's",
        "slot_mappings_ptr + group_id * slot_mappings_stride",
        "slot_mappings_ptr + (group_id + 1) * slot_mappings_stride",
        "SLOT-MAP-ACCESS",
        "SLOT-MAP-STORES",
        "SLOT-MAP-VALUES",
    ),
    _v2(
        "turns of one token",
        "// (CP_INTERLEAVE * CP_SIZE)",
        "// CP_SIZE",
        "SLOT-MAP-ACCESS",
        "SLOT-MAP-VALUES",
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    *((V1, kernel) for kernel in V1_KERNELS),
    (V1, "BlockTable.compute_slot_mapping"),
    (V2, V2_KERNEL),
    (V2, "BlockTables.compute_slot_mappings"),
)
