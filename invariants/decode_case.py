"""Launches of decode attention: one query row for each token, over a paged cache.

The pool is one that an attention launch would read; its geometry is that launch's. Only
what decode attention has of its own is said here.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants import verify_case
from invariants.kernel_shapes import Heads, HeadSize, KernelShape
from invariants.model import Origin
from invariants.scheduling import NULL_BLOCK, PrefixLayout
from invariants.verify_case import Dtype, Geometry

# latent: one head of keys, whose first elements are the values too (MLA); sliced: the
# same views, and the kernel reads them twice; heads: keys and values of their own.
Form = Literal["latent", "sliced", "heads"]
Cache = Literal["auto", "fp8"]
SPLITS_MAX = 2**10
ROWS_MAX = 2**12
COMPARED_OF = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch of both stages.

    Attributes:
        dtype: Of query and output.
        heads: Query heads.
        value_size: Elements of a value; at most those of a key.
        layout: Block tables of one KV-cache group; a request without tokens is a
            padding row, as captured graphs have them, or one whose tokens other ranks
            hold.
        query_len: Query tokens of each request, the last of its tokens; a row each.
        causal: Whether a row sees no later token of its request.
        max_seq_len: Of wired cases: the longest sequence that the step's metadata
            allows for, which decides the splits; captured graphs have the model's.
        splits: Of contract cases; 0 in wired ones.
        spare_columns: Of the table, beside those of the longest row.
        order, layers, padding: Of the pool, as for attention (`verify_case.Case`).
        flat: Whether the wrapper is given ``[tokens, kv_heads, size]``.
        logit_cap: Bound of scores, 0 for none.
        scratch_padding: Elements between rows of the scratch, as in a view of a
            larger one.
        seed: Of the contents; of four, one makes a case whose outputs are compared.
    """

    format_version: Literal[1]
    origin: Origin
    form: Form
    dtype: Dtype
    cache: Cache
    heads: Heads
    kv_heads: Heads
    key_size: HeadSize
    value_size: HeadSize
    layout: PrefixLayout
    query_len: Annotated[int, msgspec.Meta(ge=1, le=65)]
    causal: bool
    max_seq_len: Annotated[int, msgspec.Meta(ge=0, le=2**24)]
    splits: Annotated[int, msgspec.Meta(ge=0, le=SPLITS_MAX)]
    spare_columns: Annotated[int, msgspec.Meta(ge=0, le=2**12)]
    order: Literal["tokens", "heads"]
    layers: Annotated[int, msgspec.Meta(ge=1, le=64)]
    padding: Annotated[int, msgspec.Meta(ge=0, le=2**26, multiple_of=16)]
    flat: bool
    logit_cap: Annotated[float, msgspec.Meta(ge=0.0, le=1000.0)]
    scratch_padding: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        layout = self.layout
        if len(layout.block_sizes) != 1 or layout.kept_columns:
            raise ValueError("a launch needs one KV-cache group that keeps every token")
        if not any(layout.num_tokens) or self.rows > ROWS_MAX:
            raise ValueError(
                f"{self.rows} rows of requests with {layout.num_tokens} tokens; give 1 "
                f"to {ROWS_MAX}, and a request that has one"
            )
        if any(0 < tokens < self.query_len for tokens in layout.num_tokens):
            raise ValueError(
                f"{self.query_len} query tokens of requests with {layout.num_tokens}"
            )
        if self.heads % self.kv_heads or self.value_size > self.key_size:
            raise ValueError(
                f"{self.heads} query heads for {self.kv_heads}, values of "
                f"{self.value_size} elements beside keys of {self.key_size}"
            )
        if self.form != "heads" and self.kv_heads != 1:
            raise ValueError(f"{self.kv_heads} heads of one latent")
        if self.flat and (self.order, self.layers, self.padding) != ("tokens", 1, 0):
            raise ValueError("a flat cache has pages that follow one another")
        wired = self.origin == "wired"
        if wired != (self.splits == 0) or (
            wired and self.max_seq_len < max(layout.num_tokens)
        ):
            raise ValueError(
                f"{self.origin} with {self.splits} splits and sequences up to "
                f"{self.max_seq_len}; wired cases have lengths, the others splits"
            )
        if wired and (
            self.form != "latent"
            or self.order != "tokens"
            or self.flat
            or self.logit_cap
            or self.scratch_padding
        ):
            raise ValueError("no backend makes such a wired case")
        # Judges sizes.
        geometry(self)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layout.block_sizes[0]

    @property
    def rows(self) -> int:
        """Query rows."""
        return len(self.layout.num_tokens) * self.query_len

    @property
    def row_tokens(self) -> tuple[int, ...]:
        """``[rows]`` tokens that each row sees."""
        return tuple(
            max(tokens - (self.query_len - 1 - step if self.causal else 0), 0)
            for tokens in self.layout.num_tokens
            for step in range(self.query_len)
        )

    @property
    def top_block(self) -> int:
        """Largest block id that the launch may read."""
        return max(self.layout.owned_ids())

    @property
    def compared(self) -> bool:
        """Whether floats are computed too, and the outputs are compared."""
        return self.seed % COMPARED_OF == COMPARED_OF - 1

    @property
    def group(self) -> int:
        """Query heads that share a KV head; where it is one, another kernel runs."""
        return self.heads // self.kv_heads

    @property
    def reading(self) -> verify_case.Case:
        """An attention launch on the same pool, which says where everything lies."""
        return verify_case.Case(
            format_version=1,
            origin=self.origin,
            kernel="unified_2d",
            dtype=self.dtype,
            cache=self.cache,
            shape=KernelShape(
                kv_heads=self.kv_heads, queries_per_kv=1, head_size=self.key_size
            ),
            layout=PrefixLayout(
                pool_blocks=self.layout.pool_blocks,
                block_sizes=(self.block_size,),
                num_tokens=(1,),
                block_ids=(((self.top_block,),),),
                prefix_tokens=(0,),
            ),
            query_lens=(1,),
            window=0,
            page="apart",
            order=self.order,
            layers=self.layers,
            padding=self.padding,
            fused_query=False,
            seed=0,
        )

    @property
    def shared(self) -> bool:
        """Whether two requests have a block in common."""
        owned = [block for row in self.layout.block_ids[0] for block in row]
        return NULL_BLOCK not in owned and len(set(owned)) < len(owned)


def geometry(case: Case) -> Geometry:
    """Strides and offsets of the pool; values of a latent lie in its keys."""
    return verify_case.geometry(case.reading)
