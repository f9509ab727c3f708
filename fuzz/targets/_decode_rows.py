"""A decode launch's tensors beside the pool, its contents, and what must come of them.

The logical keys of each owned block are kept beside the pool, and the reference reads
those: what the kernel reads through addresses is never trusted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fuzz.targets._paged_cache import (
    KEY_DEQUANT,
    VALUE_DEQUANT,
    block_extents,
    filled_slots,
    placed_views,
    stored_dtype,
)
from fuzz.targets._sparse_pool import SparsePool
from invariants.decode_attention import Mismatch
from invariants.decode_case import Case
from invariants.decode_reference import DecodeRow, decode_row
from invariants.dense_attention import ROUNDOFF
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import Geometry

# Rows of the persistent buffers beside those of the batch, and what they hold.
_SPARE_ROWS = 2
_STALE_TOKENS = 2**20
# Elements of a query that are not zero where products are summed in 16 bits: of a whole
# row their rounding could be as large as the scores.
_TERMS = 8


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Tensors of a step.

    Attributes:
        query: ``[rows, heads, key_size]``.
        table: ``[requests, columns]`` int32; entries that no token is in hold a block
            that the batch does not own, as do the buffer's rows behind it.
        used: ``[requests]`` int32, tokens of each.
        key_unit: ``[]`` float32, what a stored key is multiplied by.
        value_unit: The same of values.
    """

    query: torch.Tensor
    table: torch.Tensor
    used: torch.Tensor
    key_unit: torch.Tensor
    value_unit: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Views of the pool where a geometry says that they are."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Contents:
    """``[owned, block_size, kv_heads, size]`` as stored; index i is of ``ids[i]``."""

    ids: tuple[int, ...]
    key: torch.Tensor
    value: torch.Tensor


def make_rows(case: Case) -> Rows:
    """Queries, table and lengths; queries from the case's seed where they count."""
    kind = getattr(torch, case.dtype)
    shape = (case.rows, case.heads, case.key_size)
    if case.compared:
        source = torch.Generator().manual_seed(case.seed)
        query = torch.randn(shape, generator=source)
        if case.group == 1:
            order = torch.rand(shape, generator=source).argsort(-1)
            query = query.masked_fill(order >= _TERMS, 0.0)
        query = query.to(kind)
    else:
        query = torch.zeros(shape, dtype=kind)
    fp8 = case.cache == "fp8"
    return Rows(
        query=query,
        table=_table(case),
        used=_lengths(case),
        key_unit=torch.tensor(KEY_DEQUANT if fp8 else 1.0),
        value_unit=torch.tensor(_value_unit(case) if fp8 else 1.0),
    )


def _value_unit(case: Case) -> float:
    """A latent's values are its keys."""
    return VALUE_DEQUANT if case.form == "heads" else KEY_DEQUANT


def _table(case: Case) -> torch.Tensor:
    rows = case.layout.block_ids[0]
    owned = set(case.layout.owned_ids())
    candidates = (*case.layout.freed, case.layout.pool_blocks - 1, 1)
    stale = next((block for block in candidates if block not in owned), NULL_BLOCK)
    columns = max(map(len, rows)) + case.spare_columns
    table = torch.full((len(rows) + _SPARE_ROWS, columns), stale, dtype=torch.int32)
    for request, row in enumerate(rows):
        table[request, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return table[: len(rows)]


def _lengths(case: Case) -> torch.Tensor:
    tokens = case.layout.num_tokens
    buffer = torch.tensor((*tokens, *(_STALE_TOKENS,) * _SPARE_ROWS), dtype=torch.int32)
    return buffer[: len(tokens)]


def placed(case: Case, place: Geometry, pool: SparsePool) -> Cache:
    """``[blocks, block_size, kv_heads, size]`` of keys and of values."""
    plain = placed_views(case.reading, place, pool)
    source = plain.value if case.form == "heads" else plain.key
    return Cache(key=plain.key, value=source[..., : case.value_size])


def fill(case: Case, pool: SparsePool, cache: Cache) -> Contents:
    """Open the owned blocks and write tokens; other slots keep the pool's poison."""
    source = torch.Generator().manual_seed(case.seed + 1)
    filled = filled_slots(case.layout)
    cells = (len(filled), case.block_size, case.kv_heads)
    kind = stored_dtype(case.reading)
    key = torch.randn((*cells, case.key_size), generator=source).to(kind)
    value = key[..., : case.value_size]
    views = [cache.key]
    if case.form == "heads":
        value = torch.randn((*cells, case.value_size), generator=source).to(kind)
        views.append(cache.value)
    pool.open(
        extent
        for view in views
        for block in filled
        for extent in block_extents(pool, view, block)
    )
    for at, (block, slots) in enumerate(filled.items()):
        cache.key[block, :slots] = key[at, :slots]
        cache.value[block, :slots] = value[at, :slots]
    return Contents(ids=tuple(filled), key=key, value=value)


def compared(
    case: Case,
    rows: Rows,
    contents: Contents,
    *,
    output: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> tuple[Mismatch, ...]:
    """What differs from the reference, the worst element of output and log-sum-exp.

    Args:
        case: The launch.
        rows: Its step.
        contents: What it found.
        output: ``[rows, heads, value_size]``; rows without tokens are nobody's.
        lse: ``[rows, heads]``.
        scale: Of the scores.
    """
    seen = case.row_tokens
    live = [row for row, tokens in enumerate(seen) if tokens]
    found = [_reference(case, rows, contents, row=row, scale=scale) for row in live]
    expected = torch.full(lse.shape, -torch.inf, dtype=torch.float64)
    allowed = torch.ones(lse.shape, dtype=torch.float64)
    expected[live] = torch.stack([each.lse for each in found])
    allowed[live] = torch.stack([each.lse_allowed for each in found])
    # Infinities that are alike have no difference.
    same = lse.double() == expected
    return (
        *_worst(
            "output",
            live,
            output[live].double(),
            torch.stack([each.output for each in found]),
            torch.stack([each.output_allowed for each in found]),
        ),
        *_worst(
            "lse",
            range(case.rows),
            lse.double().where(~same, 0.0)[..., None],
            expected.where(~same, 0.0)[..., None],
            allowed[..., None],
        ),
    )


def _reference(
    case: Case, rows: Rows, contents: Contents, *, row: int, scale: float
) -> DecodeRow:
    index = {block: at for at, block in enumerate(contents.ids)}
    blocks = case.layout.block_ids[0][row // case.query_len]
    at = torch.tensor([index[block] for block in blocks])
    tokens = case.row_tokens[row]
    key = contents.key[at].double().flatten(0, 1)[:tokens]
    value = contents.value[at].double().flatten(0, 1)[:tokens] * float(rows.value_unit)
    return decode_row(
        query=rows.query[row].double(),
        key=key * float(rows.key_unit),
        value=value,
        scale=scale,
        cap=case.logit_cap,
        dtype=case.dtype,
        lse_dtype=case.dtype if case.origin == "wired" else "float32",
        # The kernel for one head of a group multiplies and sums in the query's type.
        score_roundoff=ROUNDOFF[case.dtype if case.group == 1 else "float32"],
        terms=_TERMS if case.group == 1 else case.key_size,
        rounded_cache=case.cache == "fp8",
        stored_max=float(value.abs().max()),
    )


def _worst(
    kind: Literal["output", "lse"],
    rows: Sequence[int],
    got: torch.Tensor,
    expected: torch.Tensor,
    allowed: torch.Tensor,
) -> Iterator[Mismatch]:
    """The element furthest beyond what is allowed, if any is; NaN is."""
    excess = torch.nan_to_num((got - expected).abs() / allowed, nan=torch.inf)
    outside = int((excess > 1).sum())
    if not outside:
        return
    _, heads, size = excess.shape
    at = int(excess.argmax())
    yield Mismatch(
        kind=kind,
        outside=outside,
        row=rows[at // (heads * size)],
        head=at // size % heads,
        dim=at % size,
        got=f"{float(got.flatten()[at]):.6g}",
        expected=f"{float(expected.flatten()[at]):.6g}",
        allowed=f"{float(allowed.flatten()[at]):.3g}",
    )
