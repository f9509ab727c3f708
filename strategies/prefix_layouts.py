"""Prefix-block layouts: who owns which block of a pool, group by group.

Few numbers are drawn (a length per request, a choice per group, one order of the
pool) and every block id is derived from them, so that a layout is consistent by
construction, cheap, and shrinks to ids counted up from 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import lcm
from random import Random

from hypothesis import strategies as st

from invariants.scheduling import NULL_BLOCK, PrefixLayout, Row, columns_for
from strategies.block_sizes import ATTENTION_BLOCK_SIZES, DEPLOYED_BLOCK_SIZES
from strategies.pool_sizes import pool_sizes

SMALL_BLOCK_SIZES = (1, 2, 3, 4, 8)
# A group's block size as a multiple of the smallest one, and the trailing columns it
# keeps (0: all). Simplest first.
_GROUP_KINDS = ((1, 0), (2, 0), (4, 0), (3, 0), (1, 2), (1, 1), (2, 1), (4, 2))
# Ways to end a row: one token in the last block, all, all but one, any number.
_ENDINGS = 4
# Orders of the pool: counted up from 1, counted up to the last block, then shuffles.
_ORDERS = 64


def block_sizes(*, min_size: int = 1, max_size: int = 1600) -> st.SearchStrategy[int]:
    """Draw tokens per block: small sizes, those of deployments, and both bounds."""
    if not 1 <= min_size <= max_size:
        raise ValueError(
            f"block_sizes wants 1 <= min_size <= max_size, got {min_size}, {max_size}"
        )
    known = (
        *SMALL_BLOCK_SIZES,
        *ATTENTION_BLOCK_SIZES,
        *DEPLOYED_BLOCK_SIZES,
        *(min_size, max_size),
    )
    return st.sampled_from(sorted({s for s in known if min_size <= s <= max_size}))


@st.composite
def prefix_layouts(
    draw: st.DrawFn,
    *,
    min_requests: int = 1,
    max_requests: int = 4,
    min_columns: int = 1,
    max_columns: int = 6,
    min_tokens: int = 0,
    max_tokens: int = 2**20,
    min_groups: int = 1,
    max_groups: int = 3,
    min_block_size: int = 1,
    max_block_size: int = 1600,
    min_pool_blocks: int = 2,
    max_pool_blocks: int = 4097,
    page_stride: int | None = None,
    forgets: bool = True,
) -> PrefixLayout:
    """Draw block tables of one pool.

    Args:
        draw: Given by Hypothesis.
        min_requests: Rows, at least.
        max_requests: Rows, at most.
        min_columns: Columns of a row in blocks of the smallest size, at least; 0 gives
            rows without tokens (padding) as well.
        max_columns: The same, at most.
        min_tokens: Tokens of a row, at least; outranks the bounds on columns.
        max_tokens: Tokens of a row, at most; the same.
        min_groups: KV-cache groups, at least.
        max_groups: KV-cache groups, at most.
        min_block_size: Tokens per block in any group, at least.
        max_block_size: Tokens per block in any group, at most.
        min_pool_blocks: Pool size, at least.
        max_pool_blocks: Pool size, at most, unless the rows need more.
        page_stride: As in `pool_sizes`.
        forgets: Whether some groups keep only the last columns of a row.
    """
    base = draw(block_sizes(min_size=min_block_size, max_size=max_block_size))
    kinds = draw(
        st.lists(
            st.sampled_from(_GROUP_KINDS), min_size=min_groups, max_size=max_groups
        )
    )
    sizes = tuple(base * min(times, max_block_size // base) for times, _ in kinds)
    kept = tuple(keep if forgets else 0 for _, keep in kinds)
    order = draw(st.integers(0, _ORDERS - 1))
    # Code 0 is a row without tokens, 1 + c * _ENDINGS + e one that has c full columns
    # and a last one that ends in way e.
    lowest = (min_columns - 1) * _ENDINGS + 1 if min_columns else 0
    codes = draw(
        st.lists(
            st.integers(lowest, max_columns * _ENDINGS),
            min_size=min_requests,
            max_size=max_requests,
        )
    )
    tokens = tuple(
        min(max(_tokens(code, base, order + row), min_tokens), max_tokens)
        for row, code in enumerate(codes)
    )
    prefixes = _drawn_prefixes(draw, tokens, lcm(*sizes), order)
    tables, needed = _numbered_tables(tokens, prefixes, sizes, kept)
    smallest = max(needed + 1, min_pool_blocks)
    pool = draw(
        pool_sizes(
            min_blocks=smallest,
            max_blocks=max(smallest, max_pool_blocks),
            page_stride=page_stride,
        )
    )
    ids = _ordered_ids(order, needed=needed, pool_blocks=pool)
    history = draw(st.integers(0, 2 * needed))
    return PrefixLayout(
        pool_blocks=pool,
        block_sizes=sizes,
        num_tokens=tokens,
        block_ids=tuple(
            tuple(tuple(ids[n] for n in row) for row in rows) for rows in tables
        ),
        prefix_tokens=prefixes,
        reused=ids[1 : 1 + history],
        freed=tuple(islice(_free_ids(ids, pool), max(history - needed, 0))),
        kept_columns=kept if any(kept) else (),
    )


def lifted_layout(layout: PrefixLayout, pool_blocks: int) -> PrefixLayout:
    """The same tables, with their blocks as far below the end of a larger pool."""
    shift = pool_blocks - layout.pool_blocks

    def lift(row: Row) -> Row:
        return tuple(block + shift if block != NULL_BLOCK else block for block in row)

    return replace(
        layout,
        pool_blocks=pool_blocks,
        block_ids=tuple(tuple(lift(row) for row in rows) for rows in layout.block_ids),
        reused=lift(layout.reused),
        freed=lift(layout.freed),
    )


def _tokens(code: int, base: int, salt: int) -> int:
    """Tokens of a row from its drawn code; 0 for code 0."""
    if code == 0:
        return 0
    full, ending = divmod(code - 1, _ENDINGS)
    last = (1, base, max(base - 1, 1), 1 + salt * 7919 % base)[ending]
    return full * base + last


def _drawn_prefixes(
    draw: st.DrawFn, tokens: tuple[int, ...], unit: int, order: int
) -> tuple[int, ...]:
    """Shared leading tokens of each request.

    Prefix hits are full blocks of every group, and leave the last token to be computed
    (``get_computed_blocks`` of ``vllm/v1/core/kv_cache_manager.py``, 0.20.1).
    """
    room = [max(held - 1, 0) // unit for held in tokens]
    able = [row for row, units in enumerate(room) if units]
    sharers = draw(st.integers(0, len(able) - 1)) + 1 if len(able) > 1 else 1
    if sharers == 1:
        return (0,) * len(tokens)
    chosen = {able[(order + turn) % len(able)] for turn in range(sharers)}
    # The longest prefix must have two owners.
    longest = sorted(room[row] for row in chosen)[-2]
    units = draw(st.integers(1, longest))
    return tuple(
        min(units, room[row]) * unit if row in chosen else 0
        for row in range(len(tokens))
    )


def _numbered_tables(
    tokens: tuple[int, ...],
    prefixes: tuple[int, ...],
    sizes: tuple[int, ...],
    kept: tuple[int, ...],
) -> tuple[list[list[list[int]]], int]:
    """Block tables ``[groups][requests][columns]`` of ordinals, and the last ordinal.

    Ordinals count the blocks from 1 in the order of first use; 0 is the null block.
    """
    count = 0
    shared: dict[tuple[int, int], int] = {}
    tables: list[list[list[int]]] = []
    for group, (size, keep) in enumerate(zip(sizes, kept, strict=True)):
        rows: list[list[int]] = []
        for held, prefix in zip(tokens, prefixes, strict=True):
            columns = columns_for(held, size)
            nulls = max(columns - keep, 0) if keep else 0
            row = [NULL_BLOCK] * nulls
            for column in range(nulls, columns):
                in_prefix = (column + 1) * size <= prefix
                ordinal = shared.get((group, column)) if in_prefix else None
                if ordinal is None:
                    count += 1
                    ordinal = count
                    if in_prefix:
                        shared[group, column] = ordinal
                row.append(ordinal)
            rows.append(row)
        tables.append(rows)
    return tables, count


def _ordered_ids(order: int, *, needed: int, pool_blocks: int) -> Row:
    """Block id of each ordinal, the null block first: ``[1 + needed]``."""
    if order == 0:
        return tuple(range(needed + 1))
    if order == 1:
        return (NULL_BLOCK, *range(pool_blocks - needed, pool_blocks))
    return (NULL_BLOCK, *Random(order).sample(range(1, pool_blocks), needed))


def _free_ids(ids: Sequence[int], pool_blocks: int) -> Iterator[int]:
    """Ids of the pool that no request owns, in order."""
    owned = set(ids)
    return (block for block in range(1, pool_blocks) if block not in owned)
