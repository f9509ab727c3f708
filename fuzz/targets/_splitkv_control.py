"""A split-KV verify kernel of our own, with the public fault in it, and its cure.

Each program attends a request's query tokens to one split of its keys, a second kernel
merges the splits. `wide_ids=False` is the fault that every run must find: a block id,
loaded as i32, is multiplied by an i32 block stride, and the product wraps above 2**31
elements. `wide_ids=True` casts the id to int64 after the load, and nothing else.
"""

# Kernels are read by Triton's compiler: constants are upper-case parameters, and an
# annotation would change a parameter's specialisation.
# ruff: noqa: ANN001, ANN202, N803, PLR0915, PLR0917
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl

SPLITS = 4
TILE = 16


@triton.jit
def splitkv_control_partial(
    query_ptr,
    key_ptr,
    value_ptr,
    key_scale_ptr,
    value_scale_ptr,
    table_ptr,
    cu_query_ptr,
    used_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    softmax_scale,
    key_dequant,
    value_dequant,
    query_stride_token,
    query_stride_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    scale_stride_block,
    scale_stride_slot,
    scale_stride_head,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE_IDS: tl.constexpr,
):
    """One request, one KV head, one split of the keys: unnormalised attention."""
    request = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    first = tl.load(cu_query_ptr + request)
    count = tl.load(cu_query_ptr + request + 1) - first
    used = tl.load(used_ptr + request)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    live = token < count
    inside = dims < HEAD_SIZE
    query = tl.load(
        query_ptr
        + (first + token)[:, None] * query_stride_token
        + head[:, None] * query_stride_head
        + dims[None, :],
        mask=live[:, None] & inside[None, :],
        other=0.0,
    )
    position = used - count + token

    row_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([ROWS], dtype=tl.float32)
    acc = tl.zeros([ROWS, WIDTH], dtype=tl.float32)

    tiles = (used + TILE - 1) // TILE
    share = (tiles + SPLITS - 1) // SPLITS
    for tile in range(split * share, tl.minimum((split + 1) * share, tiles)):
        key_at = tile * TILE + tl.arange(0, TILE)
        present = key_at < used
        if WINDOW > 0:
            # Columns that left the window may hold the null block.
            present = present & (key_at > used - count - WINDOW)
        block = tl.load(
            table_ptr + request * table_stride + key_at // BLOCK_SIZE,
            mask=present,
            other=0,
        )
        if WIDE_IDS:
            block = block.to(tl.int64)
        slot = key_at % BLOCK_SIZE
        key = tl.load(
            key_ptr
            + (
                block * key_stride_block
                + slot * key_stride_slot
                + kv_head * key_stride_head
            )[None, :]
            + dims[:, None],
            mask=inside[:, None] & present[None, :],
            other=0.0,
        )
        value = tl.load(
            value_ptr
            + (
                block * value_stride_block
                + slot * value_stride_slot
                + kv_head * value_stride_head
            )[:, None]
            + dims[None, :],
            mask=present[:, None] & inside[None, :],
            other=0.0,
        )
        score = tl.dot(query, key.to(query.dtype)) * (softmax_scale * key_dequant)
        if SCALED:
            scale_at = (
                block * scale_stride_block
                + slot * scale_stride_slot
                + kv_head * scale_stride_head
            )
            score *= tl.load(key_scale_ptr + scale_at, mask=present, other=1.0)[None, :]
        seen = present[None, :] & (key_at[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (key_at[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen & live[:, None], score, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(score, axis=1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp(score - shift[:, None])
        decay = tl.exp(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weight, axis=1)
        if SCALED:
            weight *= tl.load(value_scale_ptr + scale_at, mask=present, other=1.0)[
                None, :
            ]
        acc = acc * decay[:, None] + tl.dot(
            weight.to(query.dtype), value.to(query.dtype)
        )
        row_max = new_max

    part = ((first + token).to(tl.int64) * HEADS + head) * SPLITS + split
    tl.store(max_ptr + part, row_max, mask=live)
    tl.store(sum_ptr + part, row_sum, mask=live)
    tl.store(
        acc_ptr + part[:, None] * WIDTH + dims[None, :],
        acc * value_dequant,
        mask=live[:, None] & inside[None, :],
    )


@triton.jit
def splitkv_control_merge(
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    out_stride_token,
    out_stride_head,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One query token of one head: the splits' results, weighted and normalised."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    dims = tl.arange(0, WIDTH)
    inside = dims < HEAD_SIZE
    part = (token.to(tl.int64) * HEADS + head) * SPLITS + tl.arange(0, SPLITS)
    split_max = tl.load(max_ptr + part)
    weight = tl.exp(split_max - tl.max(split_max, axis=0))
    total = tl.sum(weight * tl.load(sum_ptr + part), axis=0)
    acc = tl.load(
        acc_ptr + part[:, None] * WIDTH + dims[None, :],
        mask=inside[None, :],
        other=0.0,
    )
    merged = tl.sum(acc * weight[:, None], axis=0) / total
    tl.store(
        out_ptr + token.to(tl.int64) * out_stride_token + head * out_stride_head + dims,
        merged.to(out_ptr.dtype.element_ty),
        mask=inside,
    )


def splitkv_control_attention(
    *,
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    max_query_len: int,
    window: int,
    key_scale_cache: torch.Tensor | None,
    value_scale_cache: torch.Tensor | None,
    key_dequant: float,
    value_dequant: float,
    wide_ids: bool,
) -> None:
    """Attend speculative query tokens to a paged cache, writing into ``out``.

    Args:
        q: ``[tokens, heads, head_size]``.
        key_cache: ``[blocks, block_size, kv_heads, head_size]``, last axis dense.
        value_cache: The same.
        out: ``[tokens, heads, head_size]``.
        cu_seqlens_q: ``[requests + 1]`` int32.
        seqused_k: ``[requests]`` int32, keys of each request, its queries included.
        block_table: ``[requests, columns]`` int32.
        scale: Multiplies the scores.
        max_query_len: Longest query of the batch, in tokens.
        window: Keys that a token sees, itself included; 0 for all.
        key_scale_cache: ``[blocks, block_size, kv_heads]`` float32, or None.
        value_scale_cache: The same strides.
        key_dequant: Multiplies every key; 1.0 unless the cache is fp8.
        value_dequant: Multiplies every value.
        wide_ids: Whether block ids become int64 after their load: the cure.
    """
    tokens, heads, head_size = q.shape
    kv_heads = key_cache.shape[2]
    group = heads // kv_heads
    width = max(16, triton.next_power_of_2(head_size))
    parts = (tokens, heads, SPLITS)
    acc = torch.empty((*parts, width), dtype=torch.float32, device=q.device)
    row_max = torch.empty(parts, dtype=torch.float32, device=q.device)
    row_sum = torch.empty(parts, dtype=torch.float32, device=q.device)
    scaled = key_scale_cache is not None
    scale_strides = (
        key_scale_cache.stride() if key_scale_cache is not None else (0,) * 3
    )
    splitkv_control_partial[(len(seqused_k), kv_heads, SPLITS)](
        q,
        key_cache,
        value_cache,
        key_scale_cache if scaled else q,
        value_scale_cache if scaled else q,
        block_table,
        cu_seqlens_q,
        seqused_k,
        acc,
        row_max,
        row_sum,
        scale,
        key_dequant,
        value_dequant,
        *q.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *scale_strides,
        block_table.stride(0),
        HEADS=heads,
        GROUP=group,
        HEAD_SIZE=head_size,
        WIDTH=width,
        BLOCK_SIZE=key_cache.shape[1],
        ROWS=max(16, triton.next_power_of_2(max_query_len * group)),
        TILE=TILE,
        SPLITS=SPLITS,
        SCALED=scaled,
        WINDOW=window,
        WIDE_IDS=wide_ids,
    )
    splitkv_control_merge[(tokens, heads)](
        acc,
        row_max,
        row_sum,
        out,
        *out.stride()[:2],
        HEADS=heads,
        HEAD_SIZE=head_size,
        WIDTH=width,
        SPLITS=SPLITS,
    )
