"""Fixes of attention kernels: products of ids and strides in 64 bits."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_UNIFIED = ("vllm.v1.attention.ops.triton_unified_attention",)


def _wide_scale_strides(axis: str, factor: str) -> tuple[SourceEdit, ...]:
    """Make one axis's offset into both scale caches an int64 product."""
    return tuple(
        SourceEdit(
            modules=_UNIFIED,
            function="kernel_unified_attention",
            old=f"+ {factor} * stride_{cache}_{axis}",
            new=f"+ {factor}.to(tl.int64) * stride_{cache}_{axis}",
        )
        for cache in ("ks", "vs")
    )


FIXES = (
    # From 0.28.0 on strides of the scale caches have no int64 annotation (`int |
    # None`), so that head and slot times stride are i32 products; keys and values, with
    # annotated strides, and the kernel that writes the scales are right.
    Fix(
        name="offsets of heads and slots into the scale caches in 64 bits",
        sites=("kernel_unified_attention",),
        edits=(
            *_wide_scale_strides("head", "kv_head_idx"),
            *_wide_scale_strides("slot", "(seq_offset % BLOCK_SIZE)"),
        ),
    ),
)
