"""Launches of verify attention: small batches at the top of pools of any size.

A layout is drawn in a small pool and lifted, ids and all, to the end of one whose last
blocks lie beside a 2^31 or 2^32 boundary. Work is bounded by construction, for the
interpreter needs milliseconds for each tile of each program.
"""

from dataclasses import replace

from hypothesis import strategies as st

from invariants.kernel_shapes import KernelShape
from invariants.model import Origin
from invariants.scheduling import PrefixLayout
from invariants.verify_case import (
    INT32_LIMIT,
    POOL_BYTES_MAX,
    CacheDtype,
    Case,
    Dtype,
    Kernel,
    Order,
    Page,
    geometry,
)
from strategies.kernel_shapes import kernel_shapes
from strategies.prefix_layouts import lifted_layout, prefix_layouts
from strategies.spec_lengths import spec_lengths

MAX_QUERY = 65
# About a third of a second of interpreter; see `_work`.
WORK_MAX = 80
MAX_POOL_BLOCKS = 2**24
# Simplest first; float32 is the exact one, bfloat16 what is deployed.
_DTYPES: tuple[Dtype, ...] = ("float16", "bfloat16", "float32", "bfloat16")
_CACHES: tuple[CacheDtype, ...] = (
    *("auto", "fp8", "int8_per_token_head"),
    *("auto", "int8_per_token_head", "fp8_per_token_head"),
)
_ORDERS: tuple[Order, ...] = ("tokens", "heads", "tokens", "planes", "heads")
_PAGES: tuple[Page, ...] = ("halves", "interleaved", "apart")
_WIRED_KERNELS: tuple[Kernel, ...] = ("unified_3d",) * 7 + ("spec_decode_attn",)
_CONTRACT_KERNELS: tuple[Kernel, ...] = (
    *("unified_2d", "unified_3d") * 3,
    "control_fixed",
    "spec_decode_attn",
)
# Where the top of the pool is: in a small pool, or beyond a boundary by so many blocks;
# in a cache of wider elements bytes pass first, in one of bytes with elements.
_BOUNDARIES = ("small", "elements", "unsigned")
_WIDE_BOUNDARIES = ("small", "bytes", "elements", "unsigned")
_SCALED_BOUNDARIES = ("small", "scales", "elements", "scales", "unsigned")
# In planes the distance between heads grows with the pool, and passes limits first.
_PLANE_BOUNDARIES = ("heads", "scale heads", "small", "scale heads", "elements")
_BEYOND = (2, 1, 0, 13, 1000)
_LONG_TOKENS = 1700
_SHORT_TOKENS = 96


@st.composite
def cases(
    draw: st.DrawFn, *, origin: Origin, max_requests: int = 4, max_columns: int = 8
) -> Case:
    """Draw a launch.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones have what the release's backend allows: blocks of multiples
            of 16 tokens, and its own page.
        max_requests: Rows of the batch, at most.
        max_columns: Columns of a row, at most.
    """
    kernels = _WIRED_KERNELS if origin == "wired" else _CONTRACT_KERNELS
    kernel = draw(st.sampled_from(kernels))
    small = draw(
        _small_cases(
            origin=origin,
            kernel=kernel,
            max_requests=max_requests,
            max_columns=max_columns,
        )
    )
    boundary = draw(
        st.sampled_from(
            boundaries_of(small) if kernel != "control_fixed" else ("small",)
        )
    )
    if boundary == "small":
        return small
    return lifted(small, pool_blocks(small, boundary, draw(st.sampled_from(_BEYOND))))


@st.composite
def control_cases(draw: st.DrawFn) -> Case:
    """Draw launches of the broken control whose block offsets all pass 2^31."""
    small = draw(
        _small_cases(
            origin="contract", kernel="control_broken", max_requests=2, max_columns=4
        )
    )
    needed = len(set(small.layout.owned_ids()))
    return lifted(small, pool_blocks(small, "elements", 2 + needed))


@st.composite
def _small_cases(
    draw: st.DrawFn,
    *,
    origin: Origin,
    kernel: Kernel,
    max_requests: int,
    max_columns: int,
) -> Case:
    """A launch in a pool of a few blocks."""
    wired = origin == "wired"
    plain = kernel == "spec_decode_attn"
    dtype = draw(st.sampled_from(_DTYPES))
    cache: CacheDtype = "auto" if plain else draw(st.sampled_from(_CACHES))
    long_rows = draw(st.sampled_from((False, False, False, True)))
    sharing = max_requests > 1 and not long_rows and draw(st.booleans())
    layout = draw(
        prefix_layouts(
            min_requests=2 if sharing else 1,
            max_requests=min(max_requests, 2) if long_rows else max_requests,
            min_columns=2 if sharing else 1,
            max_columns=3 if long_rows else max_columns,
            min_tokens=1,
            max_tokens=_LONG_TOKENS if long_rows else _SHORT_TOKENS,
            max_groups=1,
            min_block_size=16 if wired else 1,
            max_block_size=32 if sharing else 1600,
            max_pool_blocks=24,
            forgets=not plain and not sharing,
        )
    )
    shape = draw(kernel_shapes(min_head_size=32 if wired else 16))
    queries = query_lens(draw, layout)
    # Wired ones split the keys into 16 segments (NUM_PAR_SOFTMAX_SEGMENTS).
    splits = {"unified_2d": 0, "spec_decode_attn": 0}.get(kernel, 16 if wired else 4)
    many = draw(st.booleans())
    shape, queries = _affordable(shape, queries, layout, splits=splits, many=many)
    own = kernel.startswith("control")
    order = draw(st.sampled_from(_ORDERS if not own else _ORDERS[:2]))
    bare = wired and order == "planes"
    if order == "planes":
        # With two, no distance below 2^31 times a head's number passes it.
        shape = replace(shape, kv_heads=max(shape.kv_heads, 3))
    return Case(
        format_version=1,
        origin=origin,
        kernel=kernel,
        dtype=dtype,
        cache=cache,
        shape=shape,
        layout=layout,
        query_lens=queries,
        window=sliding_window(draw, layout, queries, plain=plain),
        page="halves" if wired else draw(st.sampled_from(_PAGES)),
        order=order,
        layers=1 if bare else draw(st.sampled_from((1, 1, 1, 5))),
        padding=0 if bare else draw(st.sampled_from((0, 0, 0, 16, 4096))),
        fused_query=draw(st.booleans()),
        seed=draw(st.integers(0, 255)),
        sinks=kernel.startswith("unified")
        and draw(st.sampled_from((False, False, True))),
    )


def boundaries_of(case: Case) -> tuple[str, ...]:
    """Where the top of a case's pool may be; see `pool_blocks`."""
    if case.order == "planes":
        return _PLANE_BOUNDARIES
    if case.scaled:
        return _SCALED_BOUNDARIES
    return _WIDE_BOUNDARIES if geometry(case).element_bytes > 1 else _BOUNDARIES


def query_lens(draw: st.DrawFn, layout: PrefixLayout) -> tuple[int, ...]:
    """Query tokens of each row: one and k drafts in all, or any number in each."""
    limits = [
        min(MAX_QUERY, tokens - layout.forgotten_tokens(row))
        for row, tokens in enumerate(layout.num_tokens)
    ]
    drafts = draw(spec_lengths(max_tokens=MAX_QUERY - 1))
    if draw(st.booleans()):
        wanted = [draw(st.integers(1, 1 + drafts)) for _ in limits]
    else:
        wanted = [1 + drafts for _ in limits]
    return tuple(min(pair) for pair in zip(wanted, limits, strict=True))


def _work(
    group: int, queries: tuple[int, ...], layout: PrefixLayout, *, splits: int
) -> int:
    """What a launch costs for each KV head, in tiles of 16 keys (about 4 ms each).

    A program costs as much as a tile, one that ends early half of it, and merging
    splits one for each token and query head.
    """
    programs = [-(-length * group // 16) for length in queries]
    work = sum(
        count * (1 - -tokens // 16)
        for count, tokens in zip(programs, layout.num_tokens, strict=True)
    )
    if splits:
        work += splits * (sum(programs) + len(queries)) // 2 + sum(queries) * group
    return work


def _affordable(
    shape: KernelShape,
    queries: tuple[int, ...],
    layout: PrefixLayout,
    *,
    splits: int,
    many: bool,
) -> tuple[KernelShape, tuple[int, ...]]:
    """Shorter queries, smaller groups and fewer KV heads, until the work is bounded.

    With ``many``, queries stay long as long as groups can be made smaller.
    """
    group = shape.queries_per_kv
    while _work(group, queries, layout, splits=splits) > WORK_MAX:
        if max(queries) > 1 and (group == 1 or (max(queries) > 4 and not many)):
            queries = tuple((length + 1) // 2 for length in queries)
        elif group > 1:
            group //= 2
        else:
            break
    work = _work(group, queries, layout, splits=splits)
    kv_heads = min(shape.kv_heads, max(WORK_MAX // work, 1))
    return replace(shape, kv_heads=kv_heads, queries_per_kv=group), queries


def sliding_window(
    draw: st.DrawFn, layout: PrefixLayout, queries: tuple[int, ...], *, plain: bool
) -> int:
    """A sliding window that sees no forgotten token; 0 is none."""
    rooms = [
        tokens - length - forgotten + 1
        for row, (tokens, length) in enumerate(
            zip(layout.num_tokens, queries, strict=True)
        )
        if (forgotten := layout.forgotten_tokens(row))
    ]
    if plain:
        return 0
    if rooms:
        return draw(st.sampled_from((min(rooms), 1, (min(rooms) + 1) // 2)))
    return draw(st.sampled_from((0, 0, 0, 0, 1, 2, 15, 16, 17, 33)))


def pool_blocks(case: Case, boundary: str, beyond: int) -> int:
    """Blocks of a pool whose last block lies beyond a boundary; at most what fits."""
    place = geometry(case)
    last = max(case.shape.kv_heads - 1, 1)
    blocks = case.layout.pool_blocks
    limit, stride = {
        "elements": (INT32_LIMIT, place.block_stride),
        "bytes": (INT32_LIMIT, place.block_stride * place.element_bytes),
        "scales": (INT32_LIMIT, place.scale_strides[0]),
        "unsigned": (2 * INT32_LIMIT, place.block_stride),
        "heads": (INT32_LIMIT, last * place.head_stride // blocks),
        "scale heads": (INT32_LIMIT, last * place.scale_strides[2] // blocks),
    }[boundary]
    if boundary.startswith("scale") and not (case.scaled and stride):
        limit, stride = 3 * INT32_LIMIT, place.block_stride
    per_block = place.size_bytes // case.layout.pool_blocks + 1
    fits = min(MAX_POOL_BLOCKS, POOL_BYTES_MAX // per_block)
    return max(min(-(-limit // stride) + beyond, fits), case.layout.pool_blocks)


def lifted(case: Case, pool_blocks: int) -> Case:
    """The same launch with its blocks as far below the end of a larger pool."""
    return replace(case, layout=lifted_layout(case.layout, pool_blocks))
