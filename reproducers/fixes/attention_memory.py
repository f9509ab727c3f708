"""Fixes of attention kernels' accesses: those of `verify_attention`, by tensor."""

from dataclasses import replace

from fuzz.edits import SourceEdit
from reproducers.fix import Fix
from reproducers.fixes import verify_attention

_UNIFIED = ("vllm.v1.attention.ops.triton_unified_attention",)
_SCALES = (
    "kernel_unified_attention: k_scale_cache_ptr",
    "kernel_unified_attention: v_scale_cache_ptr",
)
_HEAD = "    query_head_idx = tl.program_id(1)\n"

FIXES = (
    *(replace(each, sites=_SCALES) for each in verify_attention.FIXES),
    # Up to 0.28.0 tokens that pad a batch are looked up as the last request's, whose
    # kernel has stored no part of theirs.
    Fix(
        name="tokens of padding merge nothing",
        sites=tuple(
            f"reduce_segments: segm_{each}_ptr" for each in ("expsum", "max", "output")
        ),
        edits=(
            SourceEdit(
                modules=_UNIFIED,
                function="reduce_segments",
                old=_HEAD,
                new=_HEAD
                + "    if query_token_idx >= tl.load(query_start_len_ptr + num_seqs):\n"
                + "        return\n",
            ),
        ),
    ),
)
