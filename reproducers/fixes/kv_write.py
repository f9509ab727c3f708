"""Fixes of the kernels that write keys and values."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_OPS = ("vllm.v1.attention.ops.triton_reshape_and_cache_flash",)
_QUANTISE = "_reshape_cache_per_token_head"
_PAIRED = "reshape_and_cache_kernel_flash_diffkv"


def _rounded(name: str) -> SourceEdit:
    """Add half a step, away from zero, before the store to int8 cuts off the rest."""
    number = f"{name}_h * (1.0 / {name}_scale)"
    half = f"tl.where({name}_h >= 0, 0.5, -0.5)"
    return SourceEdit(
        modules=_OPS,
        function=_QUANTISE,
        old=f"tl.clamp({number}, QUANT_MIN, QUANT_MAX)",
        new=(
            f"tl.clamp({number} + ({half} if QUANT_MAX == 127.0 else 0.0), "
            "QUANT_MIN, QUANT_MAX)"
        ),
    )


FIXES = (
    # Triton's cast from float to int8 goes toward zero.
    Fix(
        name="int8 keys and values rounded to the nearest",
        sites=(f"{_QUANTISE}: rows",),
        edits=(_rounded("k"), _rounded("v")),
    ),
    # The backend allows pages whose heads do not follow one another (HND).
    Fix(
        name="the cache's own stride from head to head",
        sites=(f"{_PAIRED}: rows", f"{_PAIRED}: kv_cache_ptr"),
        edits=(
            SourceEdit(
                modules=_OPS,
                function=_PAIRED,
                old="    page_stride: tl.int64,",
                new="    page_stride: tl.int64,\n    head_stride: tl.int64,",
            ),
            SourceEdit(
                modules=_OPS,
                function=_PAIRED,
                old="tile_i * (head_size_k + head_size_v)",
                new="tile_i * head_stride",
            ),
            SourceEdit(
                modules=_OPS,
                function="triton_reshape_and_cache_flash_diffkv",
                old="page_stride=page_stride,",
                new="page_stride=page_stride,\n        head_stride=kv_cache.stride(2),",
            ),
        ),
    ),
)
