"""Fixes of the kernels that map tokens to slots."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_V1 = ("vllm.v1.worker.block_table",)
_V2 = ("vllm.v1.worker.gpu.block_table",)
_KERNEL = "_compute_slot_mapping_kernel"

FIXES = (
    # Slots are int64, and both numbers that make one are int32.
    Fix(
        name="the block size in 64 bits, and so each slot",
        sites=("BlockTables.compute_slot_mappings: 32 bits",),
        edits=(
            SourceEdit(
                modules=_V2,
                function="_compute_slot_mappings_kernel",
                old="tl.load(block_sizes + group_id)",
                new="tl.load(block_sizes + group_id).to(tl.int64)",
            ),
        ),
    ),
    # Turns may be longer than a block of the kernels: a token's place among those of
    # its rank comes first, and its block from that.
    Fix(
        name="tokens dealt out before they are put into blocks of the kernels",
        sites=("BlockTable.compute_slot_mapping: long turns",),
        edits=(
            SourceEdit(
                modules=_V1,
                function=_KERNEL,
                old="block_indices = pos // virtual_block_size",
                new="turns = pos // CP_KV_CACHE_INTERLEAVE_SIZE\n"
                "        own = (turns // TOTAL_CP_WORLD_SIZE)"
                " * CP_KV_CACHE_INTERLEAVE_SIZE\n"
                "        own += pos % CP_KV_CACHE_INTERLEAVE_SIZE\n"
                "        block_indices = own // block_size",
            ),
            SourceEdit(
                modules=_V1,
                function=_KERNEL,
                old="slot_ids = block_numbers * block_size + local_block_offsets",
                new="is_local = turns % TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK\n"
                "        slot_ids = block_numbers * block_size + own % block_size",
            ),
        ),
    ),
)
