"""Faults planted in the attention kernels that an access of theirs shows."""

from fuzz.edits import SourceEdit
from tests.quality.mutant import Mutant

UNIFIED = ("vllm.v1.attention.ops.triton_unified_attention",)
SHARED = ("vllm.v1.attention.ops.triton_attention_helpers",)


def _kernel(old: str, new: str) -> SourceEdit:
    return SourceEdit(
        modules=UNIFIED, function="kernel_unified_attention", old=old, new=new
    )


def _merge(old: str, new: str) -> SourceEdit:
    return SourceEdit(modules=UNIFIED, function="reduce_segments", old=old, new=new)


WRITTEN: tuple[Mutant, ...] = (
    Mutant(
        name="offsets of value blocks in 32 bits",
        origin="wired",
        edits=(
            _kernel(
                "physical_block_idx[:, None] * stride_v_cache_0",
                "(physical_block_idx[:, None] * stride_v_cache_0).to(tl.int32)",
            ),
        ),
        invariants=("ATTN-EXACT",),
        cases=40,
        size=540,
    ),
    Mutant(
        name="offsets of value scales in 32 bits",
        origin="contract",
        edits=(
            _kernel(
                "physical_block_idx * stride_vs_blk",
                "(physical_block_idx * stride_vs_blk).to(tl.int32)",
            ),
        ),
        invariants=("ATTN-EXACT",),
        cases=600,
        size=540,
    ),
    Mutant(
        name="the page of the next column",
        origin="wired",
        edits=(
            _kernel(
                "block_tables_ptr + block_table_offset + seq_offset // BLOCK_SIZE",
                "block_tables_ptr + block_table_offset + 1 + seq_offset // BLOCK_SIZE",
            ),
        ),
        invariants=("ATTN-OWNED",),
        cases=40,
        size=540,
    ),
    # In the device function that the kernel calls: what was lowered before is stale.
    Mutant(
        name="unwritten blocks are read",
        origin="contract",
        edits=(
            SourceEdit(
                modules=SHARED,
                function="compute_tile_loop_bounds",
                old="tl.minimum(max_seq_prefix_len, seq_len)",
                new="max_seq_prefix_len + BLOCK_Q * 64",
            ),
        ),
        invariants=("ATTN-OWNED",),
        cases=40,
        size=540,
    ),
    Mutant(
        name="segments that nobody stored are merged",
        origin="wired",
        edits=(
            _merge(
                "act_num_segments = cdiv_fn(seq_len, tiles_per_segment * TILE_SIZE)",
                "act_num_segments = NUM_SEGMENTS_PER_SEQ",
            ),
        ),
        invariants=("ATTN-SCRATCH",),
        cases=40,
        size=540,
    ),
    Mutant(
        name="the merged row of the next token",
        origin="wired",
        edits=(
            _merge(
                "query_token_idx * output_stride_0",
                "(query_token_idx + 1) * output_stride_0",
            ),
        ),
        invariants=("ATTN-OWNED",),
        cases=40,
        size=540,
    ),
    Mutant(
        name="scratch for fewer tokens is taken",
        origin="contract",
        edits=(
            SourceEdit(
                modules=UNIFIED,
                function="unified_attention",
                old="use_3d and softmax_segm_max.shape[0] < q.shape[0]",
                new="use_3d and softmax_segm_max.shape[0] < 1",
            ),
        ),
        invariants=("ATTN-OWNED",),
        cases=200,
        size=540,
    ),
    Mutant(
        name="tokens of padding are merged",
        origin="contract",
        edits=(
            _merge(
                "query_token_idx >= tl.load(query_start_len_ptr + num_seqs)",
                "query_token_idx < 0",
            ),
        ),
        invariants=("ATTN-SCRATCH",),
        cases=200,
        size=540,
    ),
    Mutant(
        name="sinks count once in every segment",
        origin="wired",
        edits=(
            _kernel(
                "query_offset_1, query_mask_1, segm_idx, BLOCK_M, USE_SINKS, IS_3D",
                "query_offset_1, query_mask_1, 0, BLOCK_M, USE_SINKS, IS_3D",
            ),
        ),
        invariants=("ATTN-VALUES",),
        cases=200,
        size=540,
    ),
)

# As for `verify_attention`; arithmetic of floats reaches no address.
MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (SHARED, "find_seq_idx"),
    (SHARED, "resolve_seq_and_query_len"),
    (UNIFIED, "reduce_segments"),
)
