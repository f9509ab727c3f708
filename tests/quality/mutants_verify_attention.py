"""Faults planted in the unified attention kernels and what they share."""

from fuzz.edits import SourceEdit
from tests.quality.mutant import Mutant

UNIFIED = ("vllm.v1.attention.ops.triton_unified_attention",)
SHARED = ("vllm.v1.attention.ops.triton_attention_helpers",)
KERNEL = "kernel_unified_attention"


def _kernel(old: str, new: str) -> SourceEdit:
    return SourceEdit(modules=UNIFIED, function=KERNEL, old=old, new=new)


WRITTEN: tuple[Mutant, ...] = (
    # Dropping the cast of the block id alone changes nothing: the stride is int64.
    Mutant(
        name="offsets of value blocks in 32 bits",
        origin="wired",
        edits=(
            _kernel(
                "physical_block_idx[:, None] * stride_v_cache_0",
                "(physical_block_idx[:, None] * stride_v_cache_0).to(tl.int32)",
            ),
        ),
        invariants=("VERIFY-ADDRESS", "VERIFY-VALUES"),
        cases=60,
        size=520,
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
        invariants=("VERIFY-ADDRESS", "VERIFY-VALUES"),
        cases=300,
        size=540,
    ),
    Mutant(
        name="slots of values a head apart",
        origin="contract",
        edits=(
            _kernel(
                "(seq_offset % BLOCK_SIZE)[:, None] * stride_v_cache_1",
                "(seq_offset % BLOCK_SIZE)[:, None] * stride_v_cache_2",
            ),
        ),
        invariants=("VERIFY-ADDRESS", "VERIFY-VALUES"),
        cases=20,
        size=500,
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
        invariants=("VERIFY-ADDRESS", "VERIFY-VALUES"),
        cases=20,
        size=500,
    ),
    # Wrong both ways, for what writes the cache has the same views.
    Mutant(
        name="a page goes head by head where the layout says token by token",
        origin="wired",
        edits=(
            SourceEdit(
                modules=("vllm.v1.kv_cache_interface",),
                function="compute_layout_strides",
                old="order = layout.stride_order",
                new="inside = sorted(layout.stride_order[2:])\n"
                "    order = (*layout.stride_order[:2], *inside)",
            ),
            SourceEdit(
                modules=("vllm.v1.attention.backends.triton_attn",),
                function="TritonAttentionBackend.get_kv_cache_stride_order",
                old="stride_order = (0, 2, 1, 3)",
                new="stride_order = (0, 1, 2, 3)",
            ),
            SourceEdit(
                modules=("vllm.v1.attention.backends.triton_attn",),
                function="TritonAttentionBackend.get_kv_cache_stride_order",
                old="stride_order = (0, 1, 2, 3, 4)",
                new="stride_order = (0, 1, 3, 2, 4)",
            ),
        ),
        invariants=("VERIFY-ADDRESS", "VERIFY-VALUES"),
        cases=80,
        size=520,
    ),
    Mutant(
        name="a token does not see itself",
        origin="contract",
        edits=(
            SourceEdit(
                modules=SHARED,
                function="compute_kv_seq_mask",
                old="seq_mask = seq_offset[None, :] <= query_abs_pos",
                new="seq_mask = seq_offset[None, :] < query_abs_pos",
            ),
        ),
        invariants=("VERIFY-VALUES",),
        cases=20,
        size=500,
    ),
    Mutant(
        name="unwritten slots are read",
        origin="contract",
        edits=(
            SourceEdit(
                modules=SHARED,
                function="compute_tile_loop_bounds",
                old="tl.minimum(max_seq_prefix_len, seq_len)",
                new="max_seq_prefix_len",
            ),
        ),
        invariants=("VERIFY-ADDRESS", "VERIFY-VALUES"),
        cases=40,
        size=500,
    ),
    Mutant(
        name="segments merged without their maxima",
        origin="wired",
        edits=(
            SourceEdit(
                modules=UNIFIED,
                function="reduce_segments",
                old="segm_expsum = segm_expsum * segment_scale",
                new="segm_expsum = segm_expsum * 1.0",
            ),
            SourceEdit(
                modules=UNIFIED,
                function="reduce_segments",
                old="segm_expsum = segm_expsum * tl.exp(segm_max - overall_max)",
                new="segm_expsum = segm_expsum * 1.0",
            ),
        ),
        invariants=("VERIFY-VALUES",),
        cases=60,
        size=520,
    ),
)

# Small functions that every launch runs; most of the kernel and of its wrapper serves
# other models (ALiBi, sinks, multimodal prefixes) that no case of this target has.
MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (SHARED, "find_seq_idx"),
    (SHARED, "resolve_seq_and_query_len"),
    (SHARED, "softmax_step"),
    (SHARED, "store_segm_reduce_scalars"),
    (UNIFIED, "reduce_segments"),
)
