"""Requests whose blocks fill the workers' tables, group by group: values and rows.

Every group has blocks of its own in one pool, ids from its top downwards, as a hybrid
model's groups have. Some requests leave before the step, and others take their rows.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.scheduling import columns_for

Runner = Literal["v1", "v2"]
BlockSize = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
Few = Annotated[int, msgspec.Meta(ge=0, le=256)]

# Tables hold int32.
ID_LIMIT = 2**31
ROWS_MAX = 64
TILE = 1024  # Tokens or columns that a program of these kernels takes at a time.


@dataclass(frozen=True, kw_only=True)
class Group:
    """A KV-cache group.

    Attributes:
        block_size: Tokens of a block, as the KV-cache manager gives them out.
        kernel_block_size: Tokens of a block as the kernels see it.
        reach: Tokens below a request's first new one that attention still reads, 0
            for all of them.
        slots: Whether its layers write tokens to slots; a recurrent state has none.
        sharded: Whether context-parallel ranks share out its tokens.
    """

    block_size: BlockSize
    kernel_block_size: BlockSize
    reach: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0
    slots: bool = True
    sharded: bool = True


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request with all its blocks.

    Attributes:
        computed: Tokens before the step.
        query: Tokens of the step.
        first: Tokens whose blocks it brings when it joins; the others come later.
        leaves: Whether it is gone before the step.
    """

    computed: Tokens
    query: Tokens
    first: Tokens
    leaves: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that have blocks."""
        return self.computed + self.query


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the tables of one worker hold.

    Attributes:
        requests: In order of arrival.
        pool_blocks: Of the KV-cache manager, the null block included.
        longest: Tokens that a request may have (`max_model_len`).
        rows: Requests that the tables have room for.
        ranks: Of decode context parallelism, this worker's rank, and how many tokens in
            turn go to one rank.
    """

    groups: tuple[Group, ...]
    requests: tuple[Request, ...]
    pool_blocks: Annotated[int, msgspec.Meta(ge=2, le=ID_LIMIT)]
    longest: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    rows: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]
    ranks: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    rank: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0
    interleave: Annotated[int, msgspec.Meta(ge=1, le=2**12)] = 1

    def __post_init__(self) -> None:
        if not self.groups or not self.staying:
            raise ValueError("give at least one group, and one request that stays")
        for each in self.groups:
            if each.block_size % each.kernel_block_size:
                raise ValueError(
                    f"a block of {each.block_size} tokens does not split into blocks "
                    f"of {each.kernel_block_size}"
                )
            if self.ranks > 1 and each.block_size % self.interleave:
                raise ValueError(
                    f"turns of {self.interleave} tokens do not fill a block of "
                    f"{each.block_size}"
                )
        for request in self.requests:
            if not request.first <= request.tokens <= self.longest:
                raise ValueError(
                    f"{request} brings blocks of more tokens than it has, or has more "
                    f"than {self.longest}"
                )
        if self.rank >= self.ranks:
            raise ValueError(f"rank {self.rank} of {self.ranks}")
        if len(self.requests) > self.rows:
            raise ValueError(f"{len(self.requests)} requests for {self.rows} rows")
        if self.blocks >= self.pool_blocks:
            raise ValueError(
                f"{self.blocks} blocks of a pool of {self.pool_blocks}; block 0 is the "
                "null block"
            )
        if self.pool_blocks * max(map(split, self.groups)) > ID_LIMIT:
            raise ValueError(f"{self.pool_blocks} blocks have ids beyond int32")

    @property
    def staying(self) -> tuple[int, ...]:
        """Requests of the step, by their place in `requests`."""
        return tuple(at for at, each in enumerate(self.requests) if not each.leaves)

    @property
    def blocks(self) -> int:
        """Blocks of all requests."""
        return sum(
            self.count(request.tokens, group)
            for request in self.requests
            for group in self.groups
        )

    def dealt_to(self, group: Group) -> int:
        """Ranks that share out the tokens of a group."""
        return self.ranks if group.sharded else 1

    def count(self, tokens: int, group: Group) -> int:
        """Blocks of so many tokens on one rank."""
        return columns_for(tokens, group.block_size * self.dealt_to(group))


def split(group: Group) -> int:
    """Blocks of the kernels in one of the manager."""
    return group.block_size // group.kernel_block_size


def condensed(tables: Tables) -> tuple[int, ...]:
    """Requests of V1's batch once some have left, by their place in `requests`.

    The last request takes the first free row, again and again.
    """
    rows: list[int | None] = [
        None if each.leaves else at for at, each in enumerate(tables.requests)
    ]
    kept: list[int] = []
    while rows:
        first = rows.pop(0)
        while first is None and rows:
            first = rows.pop()
        if first is not None:
            kept.append(first)
    return tuple(kept)


def check_states(tables: Tables, states: tuple[int, ...]) -> None:
    """Refuse state rows that V2 cannot give to the requests that stay.

    Raises:
        ValueError: Two requests have one, or there are too few.
    """
    right = len(set(states)) == len(states) == len(tables.staying)
    if not right or max(states) >= tables.rows:
        raise ValueError(
            f"{len(tables.staying)} requests have states {list(states)} of "
            f"{tables.rows}"
        )


def rows_of(tables: Tables) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Block ids of the manager, by group and request.

    Requests take blocks in turn, so that those of one do not lie side by side.
    """
    counts = [
        [tables.count(request.tokens, group) for request in tables.requests]
        for group in tables.groups
    ]
    rows: list[list[list[int]]] = [[[] for _ in tables.requests] for _ in tables.groups]
    block = tables.pool_blocks
    for column in range(max(map(max, counts))):
        for made, wanted in zip(rows, counts, strict=True):
            for row, count in zip(made, wanted, strict=True):
                if column < count:
                    block -= 1
                    row.append(block)
    return tuple(tuple(map(tuple, made)) for made in rows)


def in_kernel_blocks(row: tuple[int, ...], group: Group) -> tuple[int, ...]:
    """A row of the manager's blocks as the kernels see it."""
    parts = split(group)
    return tuple(block * parts + part for block in row for part in range(parts))


def slot(tables: Tables, group: Group, row: tuple[int, ...], position: int) -> int:
    """Where a rank keeps a token's keys and values, -1 when another rank does.

    Tokens are dealt out to the ranks, so many in turn, and each rank fills its blocks
    with those that it gets, in order (``cp_kv_cache_interleave_size``).

    Args:
        tables: Which rank it is, and of how many.
        group: Whose blocks these are.
        row: The request's blocks of this group, as the manager has them.
        position: Of the token in its request, from 0.
    """
    ranks = tables.dealt_to(group)
    if ranks > 1:
        turn, within = divmod(position, tables.interleave)
        if turn % ranks != tables.rank:
            return -1
        position = turn // ranks * tables.interleave + within
    column, offset = divmod(position, group.block_size)
    return row[column] * group.block_size + offset
