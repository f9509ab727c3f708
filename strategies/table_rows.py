"""Requests of a batch by their lengths: block edges, tile edges, the longest length."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from invariants.table_case import ID_LIMIT, TILE, Group, Request, Tables, split

# Tokens of a step: decodes, drafts, chunks just beside what a program takes at a time.
_QUERIES = (1, 1, 1, 2, 4, 7, 64, TILE - 1, TILE, TILE + 1)
# Blocks before the step, and how many tokens of the next one.
_FULL_BLOCKS = (0, 0, 1, 2, 5)
_LONGEST = (64, 2048, 4096)
_REQUESTS_MAX = 4
_SPARE_ROWS = 2
_SMALL_POOL_SPARE = 3
# Blocks in a pool beyond which slots no longer fit 32 bits, counted from that limit.
BEYOND = (1, 2, 13, 1000)


@st.composite
def requests(
    draw: st.DrawFn, *, block_size: int, longest: int, min_query: int = 1
) -> tuple[Request, ...]:
    """Draw requests in order of arrival, of which one stays at least."""
    made = []
    for at in range(draw(st.integers(1, _REQUESTS_MAX))):
        query = min(draw(st.sampled_from(_QUERIES)), longest)
        if min_query == 0 and at and draw(st.integers(0, 9)) == 0:
            query = 0
        full = draw(st.sampled_from(_FULL_BLOCKS)) * block_size
        ending = draw(st.sampled_from((0, 1, block_size - 1)))
        computed = min(full + ending, longest - query)
        if draw(st.integers(0, 4)) == 4:
            computed = longest - query
        made.append(
            Request(
                computed=computed,
                query=query,
                first=draw(st.sampled_from((computed + query, computed, 0))),
                leaves=at > 0 and draw(st.integers(0, 3)) == 3,
            )
        )
    if len(made) > 1 and draw(st.booleans()):
        # A hole in the middle of the batch, or at its start.
        made.reverse()
    return tuple(made)


@st.composite
def tables(
    draw: st.DrawFn,
    *,
    groups: Sequence[Group],
    ranks: int = 1,
    interleave: int = 1,
    far: bool = False,
    min_query: int = 1,
) -> Tables:
    """Draw tables whose requests have blocks at the top of a pool.

    Args:
        draw: Given by Hypothesis.
        groups: The KV-cache groups.
        ranks: That share out tokens.
        interleave: Tokens that go to one rank in turn.
        far: Whether pools of more than 2^31 slots are drawn as well.
        min_query: 0 when a request may have no tokens in the step.
    """
    longest = draw(st.sampled_from(_LONGEST))
    smallest = min(each.block_size for each in groups)
    made = draw(requests(block_size=smallest, longest=longest, min_query=min_query))
    made_of = Tables(
        groups=tuple(groups),
        requests=made,
        pool_blocks=ID_LIMIT // max(map(split, groups)),
        longest=longest,
        rows=len(made) + draw(st.integers(0, _SPARE_ROWS)),
        ranks=ranks,
        rank=draw(st.integers(0, ranks - 1)) if ranks > 1 else 0,
        interleave=interleave,
    )
    pool = made_of.blocks + 1 + draw(st.integers(0, _SMALL_POOL_SPARE))
    if far and draw(st.integers(0, 3)) == 3:
        largest = max(each.block_size for each in groups)
        limit = ID_LIMIT // largest + draw(st.sampled_from(BEYOND))
        pool = max(pool, min(limit + made_of.blocks, made_of.pool_blocks))
    return replace(made_of, pool_blocks=pool)


@st.composite
def states_of(draw: st.DrawFn, made: Tables) -> tuple[int, ...]:
    """Draw V2's state row of each request that stays."""
    order = draw(st.permutations(range(made.rows)))
    return tuple(order[: len(made.staying)])
