"""Fixes of decode attention: offsets in 64 bits, tiles, and heads of a group."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_OPS = ("vllm.v1.attention.ops.triton_decode_attention",)
_ALONE, _GROUPED, _MERGE = (
    "_fwd_kernel_stage1",
    "_fwd_grouped_kernel_stage1",
    "_fwd_kernel_stage2",
)
_TOKENS = tuple(
    f"{kernel}: {tensor}"
    for kernel in (_ALONE, _GROUPED)
    for tensor in ("K_Buffer", "V_Buffer")
)
_LAUNCH = "_decode_grouped_att_m_fwd"


def _edit(function: str, old: str, new: str) -> SourceEdit:
    return SourceEdit(modules=_OPS, function=function, old=old, new=new)


def _wide_pages(kernel: str) -> tuple[SourceEdit, ...]:
    """Pages as they were numbered up to 0.20.1: a token's number, then its offset."""
    return (
        _edit(
            kernel,
            "kv_loc = kv_page_number * PAGE_SIZE",
            "kv_loc = kv_page_number.to(tl.int64) * PAGE_SIZE",
        ),
    )


def _wide_strides(kernel: str) -> tuple[SourceEdit, ...]:
    """From 0.24 on pages have a stride of their own."""
    return tuple(
        _edit(
            kernel,
            f"kv_page_number * stride_buf_{which}pbs",
            f"kv_page_number.to(tl.int64) * stride_buf_{which}pbs",
        )
        for which in "kv"
    )


FIXES = (
    Fix(
        name="offsets of tokens in 64 bits",
        sites=_TOKENS,
        edits=(*_wide_pages(_ALONE), *_wide_pages(_GROUPED)),
    ),
    Fix(
        name="offsets of pages in 64 bits",
        sites=_TOKENS,
        edits=(*_wide_strides(_ALONE), *_wide_strides(_GROUPED)),
    ),
    Fix(
        name="offsets of scratch rows in 64 bits",
        sites=(f"{_ALONE}: Att_Out", f"{_GROUPED}: Att_Out", f"{_MERGE}: Mid_O"),
        edits=tuple(
            _edit(
                kernel,
                "cur_batch = tl.program_id(0)",
                "cur_batch = tl.program_id(0).to(tl.int64)",
            )
            for kernel in (_ALONE, _GROUPED, _MERGE)
        ),
    ),
    # Of a latent, the first part of the keys is what the values are taken from.
    Fix(
        name="a latent's tile as wide as its values",
        sites=(_LAUNCH,),
        edits=(
            _edit(
                _LAUNCH,
                """        BLOCK_DMODEL = triton.next_power_of_2(Lk)
        BLOCK_DPE = 0""",
                """        width = Lv if is_mla else Lk
        BLOCK_DMODEL = triton.next_power_of_2(width)
        BLOCK_DPE = triton.next_power_of_2(Lk - Lv) if is_mla and Lk > Lv else 0""",
            ),
        ),
    ),
    # A tile of heads must not reach from one group into the next.
    Fix(
        name="tiles of heads group by group",
        sites=(f"{_GROUPED}: output", f"{_GROUPED}: lse"),
        edits=(
            _edit(
                _GROUPED,
                "cur_head = cur_head_id * VALID_BLOCK_H + tl.arange(0, BLOCK_H)",
                "tile = cur_head_id % tl.cdiv(kv_group_num, BLOCK_H)\n"
                "    cur_head = (\n"
                "        cur_kv_head * kv_group_num\n"
                "        + tile * BLOCK_H\n"
                "        + tl.arange(0, BLOCK_H)\n"
                "    )",
            ),
            _edit(
                _GROUPED,
                "mask_h = cur_head < (cur_head_id + 1) * VALID_BLOCK_H",
                "mask_h = cur_head < (cur_kv_head + 1) * kv_group_num",
            ),
            _edit(
                _LAUNCH,
                "triton.cdiv(head_num, min(BLOCK_H, kv_group_num)),",
                "head_num // kv_group_num * triton.cdiv(kv_group_num, BLOCK_H),",
            ),
        ),
    ),
)
