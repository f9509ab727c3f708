"""Fixes of attention kernels' accesses: those of `verify_attention`, by tensor."""

from dataclasses import replace

from reproducers.fixes import verify_attention

_SCALES = (
    "kernel_unified_attention: k_scale_cache_ptr",
    "kernel_unified_attention: v_scale_cache_ptr",
)

FIXES = tuple(replace(each, sites=_SCALES) for each in verify_attention.FIXES)
