"""Launches of attention kernels for the memory checker.

Every new combination of sizes that are compiled in costs as much as a hundred launches:
those come from a short list, and everything else (rows, lengths, blocks, the pool's
size) is drawn freely.
"""

from hypothesis import strategies as st

from invariants.kernel_shapes import KernelShape
from invariants.model import Origin
from invariants.scheduling import PrefixLayout
from invariants.verify_case import CacheDtype, Case, Dtype, Kernel, Order, Page, Scratch
from strategies import verify_attention
from strategies.block_sizes import NARROW, ODD, WIDE, WIDER
from strategies.prefix_layouts import prefix_layouts
from strategies.verify_attention import (
    boundaries_of,
    lifted,
    pool_blocks,
    query_lens,
    sliding_window,
)

control_cases = verify_attention.control_cases

# Types of elements and cache, KV heads, queries for each, head and block size, page,
# whether heads have sinks.
_Configuration = tuple[Dtype, CacheDtype, int, int, int, int, Page, Order, bool]
_WIRED: tuple[_Configuration, ...] = (
    ("bfloat16", "auto", 2, 4, 64, 16, "halves", "tokens", True),
    ("bfloat16", "auto", 1, 2, 32, 48, "halves", "heads", True),
    ("float16", "auto", 2, 8, 256, WIDE, "halves", "tokens", False),
    ("bfloat16", "int8_per_token_head", 3, 2, 32, 16, "halves", "planes", False),
    ("bfloat16", "int8_per_token_head", 4, 1, 128, 64, "halves", "heads", False),
    ("bfloat16", "int8_per_token_head", 2, 2, 64, 32, "halves", "tokens", False),
    ("float16", "fp8_per_token_head", 3, 1, 64, 16, "halves", "tokens", True),
    ("bfloat16", "fp8", 2, 2, 128, 32, "halves", "tokens", True),
    ("bfloat16", "auto", 5, 1, 96, 16, "halves", "planes", False),
)
_CONTRACT: tuple[_Configuration, ...] = (
    ("float16", "auto", 1, 1, 16, 1, "halves", "tokens", True),
    ("bfloat16", "auto", 4, 6, 256, WIDER, "apart", "tokens", True),
    ("float32", "auto", 2, 2, 80, 7, "interleaved", "heads", False),
    ("bfloat16", "int8_per_token_head", 3, 2, 32, 16, "apart", "planes", False),
    ("bfloat16", "int8_per_token_head", 4, 2, 64, 17, "interleaved", "tokens", True),
    ("float16", "fp8_per_token_head", 3, 1, 128, 33, "halves", "heads", False),
    ("bfloat16", "fp8", 2, 4, 64, ODD, "apart", "heads", False),
    ("bfloat16", "auto", 3, 1, 96, NARROW, "interleaved", "planes", True),
)
_CONTRACT_KERNELS: tuple[Kernel, ...] = ("unified_2d", "unified_3d")
_SCRATCH: tuple[Scratch, ...] = ("tokens", "tokens", "requests")
_LONG_TOKENS = 1700
_SHORT_TOKENS = 96
_BEYOND = (2, 1, 0, 13, 1000)


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin, max_requests: int = 6) -> Case:
    """Draw a launch of the tree's own kernels.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones have what the release's backend allows.
        max_requests: Rows of the batch, at most.
    """
    wired = origin == "wired"
    dtype, cache, kv_heads, group, size, block, page, order, sinks = draw(
        st.sampled_from(_WIRED if wired else _CONTRACT)
    )
    long_rows = draw(st.sampled_from((False, False, False, True)))
    sharing = block <= 48 and not long_rows and draw(st.booleans())
    layout = draw(
        prefix_layouts(
            min_requests=2 if sharing else 1,
            max_requests=max_requests,
            min_columns=2 if sharing else 1,
            max_columns=8,
            min_tokens=1,
            max_tokens=_LONG_TOKENS if long_rows else _SHORT_TOKENS,
            max_groups=1,
            min_block_size=block,
            max_block_size=block,
            max_pool_blocks=40,
            forgets=not sharing and draw(st.sampled_from((False,) * 7 + (True,))),
        )
    )
    queries = query_lens(draw, layout)
    bare = wired and order == "planes"
    kernel: Kernel = "unified_3d" if wired else draw(st.sampled_from(_CONTRACT_KERNELS))
    # A graph of uniform decodes has as many tokens for each row that is missing.
    padding_rows = draw(st.sampled_from((0, 0, 0, 0, 1, 3)))
    padding_tokens = padding_rows * max(queries)
    if not wired:
        padding_tokens += draw(st.sampled_from((0, 0, 0, 0, 1, 9)))
    small = Case(
        format_version=1,
        origin=origin,
        kernel=kernel,
        dtype=dtype,
        cache=cache,
        shape=KernelShape(kv_heads=kv_heads, queries_per_kv=group, head_size=size),
        layout=layout,
        query_lens=queries,
        window=_window(draw, layout, queries),
        page=page,
        order=order,
        layers=1 if bare else draw(st.sampled_from((1, 1, 1, 5))),
        padding=0 if bare else draw(st.sampled_from((0, 0, 0, 16))),
        fused_query=draw(st.booleans()),
        seed=draw(st.integers(0, 255)),
        sinks=sinks,
        scratch="tokens"
        if wired or kernel != "unified_3d"
        else draw(st.sampled_from(_SCRATCH)),
        padding_rows=padding_rows,
        padding_tokens=padding_tokens,
    )
    boundary = draw(st.sampled_from(boundaries_of(small)))
    if boundary == "small":
        return small
    beyond = draw(st.sampled_from(_BEYOND))
    return lifted(small, pool_blocks(small, boundary, beyond))


def _window(draw: st.DrawFn, layout: PrefixLayout, queries: tuple[int, ...]) -> int:
    """A sliding window, which is compiled in: one size, where the layout has none."""
    if any(layout.forgotten_tokens(row) for row in range(len(queries))):
        return sliding_window(draw, layout, queries, plain=False)
    return draw(st.sampled_from((0, 0, 0, 33)))
