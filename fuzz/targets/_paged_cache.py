"""Contents of a paged KV cache, written where a launch will look for them.

The logical keys and values of each owned block are kept beside the pool, and the
reference reads those: what the kernel reads through addresses is never trusted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fuzz.targets._sparse_pool import SparsePool
from invariants.dense_attention import dense_attention
from invariants.scheduling import NULL_BLOCK, PrefixLayout
from invariants.verify_attention import Mismatch
from invariants.verify_case import Case, Geometry

# Finite in every format, large in most: the null block may be read, never used.
_NULL_CONTENT = 0x56
_STORED = {
    "fp8": torch.float8_e4m3fn,
    "int8_per_token_head": torch.int8,
    "fp8_per_token_head": torch.float8_e4m3fn,
}
# Of the whole tensor; float32 has no exact 0.7, which is the point.
KEY_DEQUANT = 0.7
VALUE_DEQUANT = 1.3


@dataclass(frozen=True, kw_only=True)
class CacheViews:
    """The tensors that a launch gets: ``[blocks, block_size, kv_heads, ...]``.

    Attributes:
        key_scale: ``[blocks, block_size, kv_heads]`` float32, None without.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | None
    value_scale: torch.Tensor | None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those that are there."""
        for each in (self.key, self.value, self.key_scale, self.value_scale):
            if each is not None:
                yield each


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Logical contents: index i of the block axis is block ``ids[i]``.

    Attributes:
        query: ``[tokens, heads, head_size]`` of the case's dtype.
        key: ``[owned, block_size, kv_heads, head_size]`` as stored.
        key_scale: ``[owned, block_size, kv_heads]`` float32; ones without scales.
        filled: ``[owned]`` slots of each block that were written.
    """

    ids: tuple[int, ...]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor
    value_scale: torch.Tensor
    filled: tuple[int, ...]


def placed_views(case: Case, place: Geometry, pool: SparsePool) -> CacheViews:
    """The views that a geometry says, whatever a tree makes of the same pool."""
    shape = (case.layout.pool_blocks, case.block_size, case.shape.kv_heads)
    whole = pool.bytes[: place.size_bytes // 4 * 4]
    elements, singles = whole.view(stored_dtype(case)), whole.view(torch.float32)
    strides = (place.block_stride, place.slot_stride, place.head_stride, 1)
    key, value = (
        torch.as_strided(elements, (*shape, case.shape.head_size), strides, offset)
        for offset in (place.key_offset, place.value_offset)
    )
    if not case.scaled:
        return CacheViews(key=key, value=value, key_scale=None, value_scale=None)
    key_scale, value_scale = (
        torch.as_strided(singles, shape, place.scale_strides, offset)
        for offset in (place.key_scale_offset, place.value_scale_offset)
    )
    return CacheViews(
        key=key, value=value, key_scale=key_scale, value_scale=value_scale
    )


def stored_dtype(case: Case) -> torch.dtype:
    """Element type of the cache."""
    dtype: torch.dtype = _STORED.get(case.cache) or getattr(torch, case.dtype)
    return dtype


def draw_contents(case: Case) -> Contents:
    """Contents from the case's seed."""
    layout, shape = case.layout, case.shape
    filled = filled_slots(layout)
    cells = (len(filled), case.block_size, shape.kv_heads)
    source = torch.Generator().manual_seed(case.seed)
    query = torch.randn(
        (sum(case.query_lens), shape.heads, shape.head_size), generator=source
    ).to(getattr(torch, case.dtype))
    dtype = stored_dtype(case)
    stored = []
    for _ in range(2):
        numbers = torch.randn((*cells, shape.head_size), generator=source)
        if dtype == torch.int8:
            numbers = (numbers * 40).round().clamp(-127, 127)
        stored.append(numbers.to(dtype))
    if case.scaled:
        unit = 1 / 40 if dtype == torch.int8 else 1.0
        scales = [unit * (0.5 + torch.rand(cells, generator=source)) for _ in range(2)]
    else:
        scales = [torch.ones(cells)] * 2
    return Contents(
        ids=tuple(filled),
        query=query,
        key=stored[0],
        value=stored[1],
        key_scale=scales[0],
        value_scale=scales[1],
        filled=tuple(filled.values()),
    )


def filled_slots(layout: PrefixLayout) -> dict[int, int]:
    """Written slots of each owned block, by id."""
    size = layout.block_sizes[0]
    filled: dict[int, int] = {}
    for tokens, row in zip(layout.num_tokens, layout.block_ids[0], strict=True):
        for column, block in enumerate(row):
            if block != NULL_BLOCK:
                slots = min(size, tokens - column * size)
                filled[block] = max(slots, filled.get(block, 0))
    return filled


def fill_cache(
    pool: SparsePool, views: CacheViews, contents: Contents, *, null_block: bool
) -> None:
    """Open the owned blocks of a pool and write their contents.

    Unwritten slots of an owned block keep the pool's poison.

    Args:
        pool: Whose memory the views show.
        views: Where the layout says that contents are; never the tree's own views, or
            a wrong stride would be wrong both ways.
        contents: What the launch must find.
        null_block: Whether the tables name the null block, which is then readable.
    """

    def extents(*blocks: int) -> list[tuple[int, int]]:
        return [
            extent
            for view in views.tensors()
            for block in blocks
            for extent in block_extents(pool, view, block)
        ]

    null = extents(NULL_BLOCK) if null_block else []
    owned = extents(*contents.ids)
    pool.open([*null, *owned])
    for low, high in null:
        pool.bytes[low:high] = _NULL_CONTENT
    for index, (block, slots) in enumerate(
        zip(contents.ids, contents.filled, strict=True)
    ):
        head_size = contents.key.shape[-1]
        views.key[block, :slots, :, :head_size] = contents.key[index, :slots]
        views.value[block, :slots, :, :head_size] = contents.value[index, :slots]
        if views.key_scale is not None and views.value_scale is not None:
            views.key_scale[block, :slots] = contents.key_scale[index, :slots]
            views.value_scale[block, :slots] = contents.value_scale[index, :slots]


def block_extents(
    pool: SparsePool, view: torch.Tensor, block: int
) -> Iterator[tuple[int, int]]:
    """Bytes of the pool from first to last element of each head of a block."""
    for head in view[block].unbind(1):
        span = sum(
            (size - 1) * stride
            for size, stride in zip(head.shape, head.stride(), strict=True)
        )
        low = head.data_ptr() - pool.bytes.data_ptr()
        yield low, low + (span + 1) * view.element_size()


def worst_mismatch(
    case: Case,
    contents: Contents,
    out: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    tf32: bool = False,
) -> Mismatch | None:
    """Compare an output, ``[tokens, heads, head_size]``, with dense attention.

    Args:
        case: The launch.
        contents: What it found.
        out: What it left.
        sinks: ``[heads]`` logits, None without.
        tf32: Whether products of float32 have factors of 10 bits, as on a GPU.
    """
    index = {block: at for at, block in enumerate(contents.ids)}
    # The null block's tokens lie outside of every window.
    index.setdefault(NULL_BLOCK, 0)
    fp8 = case.cache == "fp8"
    key_unit = float(torch.tensor(KEY_DEQUANT)) if fp8 else 1.0
    value_unit = float(torch.tensor(VALUE_DEQUANT)) if fp8 else 1.0
    stored_max = float(contents.value.float().abs().max())
    expected, allowed = [], []
    start = 0
    for request, (tokens, length) in enumerate(
        zip(case.layout.num_tokens, case.query_lens, strict=True)
    ):
        rows = torch.tensor([index[b] for b in case.layout.block_ids[0][request]])
        key = _numbers(contents.key, contents.key_scale, rows)[:tokens] * key_unit
        value = _numbers(contents.value, contents.value_scale, rows)[:tokens]
        dense = dense_attention(
            query=contents.query[start : start + length].double(),
            key=key,
            value=value * value_unit,
            scale=softmax_scale(case),
            window=case.window,
            dtype=case.dtype,
            rounded_cache=fp8,
            stored_max=stored_max * value_unit,
            sinks=None if sinks is None else sinks.double(),
            factor_roundoff=2.0**-10 if tf32 and case.dtype == "float32" else 0.0,
        )
        expected.append(dense.output)
        allowed.append(dense.allowed)
        start += length
    want, room = torch.cat(expected), torch.cat(allowed)
    # Rows after those of the requests are padding.
    got = out[: len(want)].double()
    excess = torch.nan_to_num((got - want).abs() / room, nan=torch.inf)
    outside = int((excess > 1).sum())
    if not outside:
        return None
    at = int(excess.argmax())
    _, heads, dims = want.shape
    return Mismatch(
        outside=outside,
        elements=want.numel(),
        token=at // (heads * dims),
        head=at // dims % heads,
        dim=at % dims,
        got=f"{float(got.flatten()[at]):.6g}",
        expected=f"{float(want.flatten()[at]):.6g}",
        allowed=f"{float(room.flatten()[at]):.3g}",
    )


def _numbers(
    stored: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Keys or values of a request's blocks in float64: ``[slots, kv_heads, size]``."""
    numbers = stored[rows].double() * scales[rows].double()[..., None]
    return numbers.flatten(0, 1)


def softmax_scale(case: Case) -> float:
    """The usual one over the root of the head size."""
    scale: float = case.shape.head_size**-0.5
    return scale
