"""Launches of verify attention: batch, block tables, and the pool that they are in.

A pool is described by its strides alone and may be of any size: only the blocks that
its batch owns are ever touched.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.kernel_shapes import KernelShape
from invariants.model import Origin
from invariants.scheduling import PrefixLayout

INT32_LIMIT = 2**31
# Virtual memory of one case; 48 bits of address space have room for several.
POOL_BYTES_MAX = 2**44

# unified_3d offers split-KV scratch; whether it is used is the tree's decision.
Kernel = Literal[
    "unified_2d", "unified_3d", "spec_decode_attn", "control_broken", "control_fixed"
]
Dtype = Literal["bfloat16", "float16", "float32"]
CacheDtype = Literal["auto", "fp8", "int8_per_token_head", "fp8_per_token_head"]
# Where keys and values of a block lie: keys then values (0.20.1), beside each other in
# every head (0.33.0), or in two tensors; scales lie after each head, or in tensors of
# their own.
Page = Literal["halves", "interleaved", "apart"]
# Physical order of tokens and heads: NHD, HND, or all blocks of a head after all of the
# one before (LHBNC of 0.33.0).
Order = Literal["tokens", "heads", "planes"]
Scratch = Literal["tokens", "requests"]
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Strides and sizes of a pool, in elements of the cache but where it says else.

    Keys and values have the same strides; float32 scales are measured in float32.
    """

    element_bytes: int
    key_offset: int
    value_offset: int
    block_stride: int
    slot_stride: int
    head_stride: int
    key_scale_offset: int
    value_scale_offset: int
    scale_strides: tuple[int, int, int]
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch.

    Attributes:
        layout: Block tables of one KV-cache group; ``num_tokens`` are the keys of each
            request, its query tokens included, which are the last of them.
        query_lens: ``[requests]`` query tokens, at most 65 (one and 64 drafts).
        window: Keys that a token sees, itself included; 0 for all. Columns that a
            layout has forgotten lie outside of every token's window.
        page: Only for contract cases; of wired ones the release decides.
        order: Whether a page goes token by token, head by head, or has one head only.
        layers: Layers whose pages lie side by side in one block; the last is read.
        padding: Unused elements (contract) or bytes (wired) at the end of each page,
            as pools shared with a larger page have them.
        fused_query: Whether the query is a view of a fused QKV projection.
        seed: Of the contents.
        sinks: Whether each head has a logit that takes part in its softmax only.
        scratch: Of `unified_3d`, whether it has a row for each token or request.
        padding_rows: Requests without tokens after the batch, as a CUDA graph of a
            larger batch has them.
        padding_tokens: Rows of query and output that belong to no request.
    """

    format_version: Literal[1]
    origin: Origin
    kernel: Kernel
    dtype: Dtype
    cache: CacheDtype
    shape: KernelShape
    layout: PrefixLayout
    query_lens: tuple[Annotated[int, msgspec.Meta(ge=1, le=65)], ...]
    window: Annotated[int, msgspec.Meta(ge=0, le=2**20)]
    page: Page
    order: Order
    layers: Annotated[int, msgspec.Meta(ge=1, le=64)]
    padding: Annotated[int, msgspec.Meta(ge=0, le=2**26, multiple_of=16)]
    fused_query: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    sinks: bool = False
    scratch: Scratch = "tokens"
    padding_rows: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    padding_tokens: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0

    def __post_init__(self) -> None:
        layout = self.layout
        if len(layout.block_sizes) != 1 or not layout.num_tokens:
            raise ValueError("a launch needs one KV-cache group and a request")
        if len(self.query_lens) != len(layout.num_tokens):
            raise ValueError(
                f"{len(self.query_lens)} query lengths for {len(layout.num_tokens)} "
                "requests"
            )
        for request, (tokens, length) in enumerate(
            zip(layout.num_tokens, self.query_lens, strict=True)
        ):
            first = tokens - length
            if first < 0:
                raise ValueError(
                    f"request {request} has {length} query tokens of {tokens}"
                )
            forgotten = layout.forgotten_tokens(request)
            if forgotten and not 0 < self.window <= first + 1 - forgotten:
                raise ValueError(
                    f"request {request} has forgotten {forgotten} tokens, and its "
                    f"token {first} sees them: the window is {self.window}"
                )
        if self.scaled and self.shape.head_size % 4:
            raise ValueError(
                f"a head size of {self.shape.head_size} with float32 scales after each "
                "head; it must be a multiple of 4"
            )
        if not self.kernel.startswith("unified") and (
            self.sinks or self.padding_rows or self.padding_tokens
        ):
            raise ValueError(f"{self.kernel} takes neither sinks nor padding")
        if self.scratch == "requests" and (
            self.kernel != "unified_3d" or self.origin == "wired"
        ):
            raise ValueError("only contract cases of unified_3d choose their scratch")
        if layout.block_sizes[0] > 2**14:
            size = layout.block_sizes[0]
            raise ValueError(f"a block of {size} tokens; at most 16384")
        size = geometry(self).size_bytes
        if size > POOL_BYTES_MAX:
            raise ValueError(f"a pool of {size} bytes; at most {POOL_BYTES_MAX}")

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layout.block_sizes[0]

    @property
    def scaled(self) -> bool:
        """Whether every token and head of the cache has a float32 scale."""
        return self.cache.endswith("_per_token_head")

    @property
    def top_block(self) -> int:
        """Largest block id that the launch may read."""
        return max(self.layout.owned_ids())

    @property
    def may_wrap(self) -> bool:
        """Whether an id or a head times its stride passes 2**31 in a contract pool."""
        place = geometry(self)
        strides = [(place.block_stride, place.head_stride)]
        if self.scaled:
            strides.append((place.scale_strides[0], place.scale_strides[2]))
        last = self.shape.kv_heads - 1
        return any(
            max(self.top_block * block, last * head) >= INT32_LIMIT
            for block, head in strides
        )


def geometry(case: Case) -> Geometry:
    """Strides of a contract case's pool; of a wired one, what they are without tree."""
    size = ITEM_BYTES[case.dtype] if case.cache == "auto" else 1
    heads, slots = case.shape.kv_heads, case.block_size
    inline = case.scaled and case.page != "apart"
    width = case.shape.head_size + (4 if inline else 0)
    cell = 2 * width if case.page == "interleaved" else width
    # Heads in a page, and pages of a block: planes keep each head's pages apart.
    inside, planes = (1, heads) if case.order == "planes" else (heads, 1)
    half = slots * inside * cell
    page = half * (2 if case.page == "halves" else 1) + case.padding
    # Scales in line are read as float32: pages start on 4 bytes.
    page = -(-page // 4) * 4
    block_stride = page * case.layers
    first = page * (case.layers - 1)
    plane = case.layout.pool_blocks * block_stride
    slot_stride, head_stride = {
        "tokens": (heads * cell, cell),
        "heads": (cell, slots * cell),
        "planes": (cell, plane),
    }[case.order]
    pool = plane * planes
    value = {
        "halves": first + half,
        "interleaved": first + width,
        "apart": first + pool,
    }
    end = pool * size * (2 if case.page == "apart" else 1)
    if inline:
        scales = (block_stride // 4, slot_stride // 4, head_stride // 4)
        key_scale = (first + case.shape.head_size) // 4
        value_scale = (value[case.page] + case.shape.head_size) // 4
    else:
        scales = (slots * heads, heads, 1)
        key_scale = -(-end // 4)
        value_scale = key_scale + case.layout.pool_blocks * slots * heads
        if case.scaled:
            end = 4 * (value_scale + case.layout.pool_blocks * slots * heads)
    return Geometry(
        element_bytes=size,
        key_offset=first,
        value_offset=value[case.page],
        block_stride=block_stride,
        slot_stride=slot_stride,
        head_stride=head_stride,
        key_scale_offset=key_scale,
        value_scale_offset=value_scale,
        scale_strides=scales,
        size_bytes=end,
    )
