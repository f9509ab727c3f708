"""Steps that write keys and values: runs of slots at the top of pools of any size.

Sizes that are compiled in come from a short list, as each new combination of them costs
as much as a hundred launches.
"""

from dataclasses import replace

from hypothesis import strategies as st

from invariants.kv_write_case import PADDING_SLOT, Case, Form, geometry
from invariants.model import Origin
from invariants.verify_case import (
    INT32_LIMIT,
    POOL_BYTES_MAX,
    CacheDtype,
    Dtype,
    Order,
    Page,
)
from strategies.block_sizes import NARROW, ODD, WIDE, WIDER
from strategies.verify_attention import MAX_POOL_BLOCKS, boundaries_of, pool_blocks

# Form, types of elements and cache, KV heads, sizes of key and value, block size, page.
_Configuration = tuple[Form, Dtype, CacheDtype, int, int, int, int, Page, Order]
_INT8: CacheDtype = "int8_per_token_head"
_FP8: CacheDtype = "fp8_per_token_head"
_WIRED: tuple[_Configuration, ...] = (
    ("flash", "bfloat16", "auto", 2, 64, 64, 16, "halves", "tokens"),
    ("flash", "bfloat16", "auto", 1, 32, 32, 48, "halves", "heads"),
    ("flash", "float16", "auto", 2, 256, 256, WIDE, "halves", "tokens"),
    ("flash", "bfloat16", "fp8", 2, 128, 128, 32, "halves", "tokens"),
    ("flash", "bfloat16", "auto", 5, 96, 96, 16, "halves", "planes"),
    ("per_token_head", "bfloat16", _INT8, 4, 128, 128, 64, "halves", "tokens"),
    ("per_token_head", "float16", _FP8, 3, 64, 64, 16, "halves", "tokens"),
    ("per_token_head", "bfloat16", _INT8, 3, 32, 32, 16, "halves", "planes"),
    ("per_token_head", "bfloat16", _INT8, 2, 64, 64, 32, "halves", "heads"),
)
_CONTRACT: tuple[_Configuration, ...] = (
    ("flash", "float16", "auto", 1, 16, 16, 1, "halves", "tokens"),
    ("flash", "bfloat16", "auto", 9, 256, 256, WIDER, "apart", "tokens"),
    ("flash", "float32", "auto", 2, 80, 80, 7, "interleaved", "heads"),
    ("flash", "bfloat16", "fp8", 2, 64, 64, ODD, "apart", "heads"),
    ("flash", "bfloat16", "auto", 3, 96, 96, NARROW, "interleaved", "planes"),
    ("heads_first", "bfloat16", "auto", 2, 64, 64, 16, "apart", "heads"),
    ("heads_first", "bfloat16", "fp8", 3, 128, 128, WIDE, "apart", "heads"),
    ("per_token_head", "bfloat16", _INT8, 3, 32, 32, 16, "apart", "planes"),
    ("per_token_head", "bfloat16", _INT8, 4, 80, 80, 17, "interleaved", "tokens"),
    ("per_token_head", "float16", _FP8, 3, 128, 128, 33, "halves", "heads"),
    ("diffkv", "bfloat16", "auto", 2, 192, 128, 16, "interleaved", "tokens"),
    ("diffkv", "float16", "auto", 3, 40, 24, 48, "interleaved", "heads"),
    ("diffkv", "bfloat16", "fp8", 1, 128, 64, WIDE, "interleaved", "tokens"),
)
# Blocks of the step, counted from the pool's end, and runs of tokens in them.
_RANKS_MAX = 6
_RUNS_MAX = 4
_RUN_MAX = 40
_RUN_BLOCKS_MAX = 8
_SMALL_POOL = 24
_UNWRITTEN = (-1, -1)
_BEYOND = (2, 1, 0, 13, 1000)
_PAST_SLOTS = "slots"


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a launch.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones have what the release's backend allows.
    """
    wired = origin == "wired"
    form, dtype, cache, heads, key, value, block, page, order = draw(
        st.sampled_from(_WIRED if wired else _CONTRACT)
    )
    bare = wired and order == "planes"
    places = draw(_places(block_size=block))
    blocks = _SMALL_POOL
    small = Case(
        format_version=1,
        origin=origin,
        form=form,
        dtype=dtype,
        cache=cache,
        kv_heads=heads,
        head_size=key,
        value_size=value,
        block_size=block,
        pool_blocks=blocks,
        slots=_slots(places, block_size=block, pool_blocks=blocks),
        page=page,
        order=order,
        layers=1 if bare else draw(st.sampled_from((1, 1, 1, 5))),
        padding=0 if bare else draw(st.sampled_from((0, 0, 0, 16))),
        fused=draw(st.booleans()),
        # Whether the cache is compared is a choice of its own; see `Case.compared`.
        seed=4 * draw(st.integers(0, 63)) + draw(st.sampled_from((0, 3, 1, 2))),
    )
    reading = small.reading
    boundary = draw(st.sampled_from((*boundaries_of(reading), _PAST_SLOTS)))
    if boundary == "small":
        return small
    beyond = draw(st.sampled_from(_BEYOND))
    if boundary == _PAST_SLOTS:
        block_bytes = geometry(small).size_bytes // blocks + 1
        fits = min(MAX_POOL_BLOCKS, POOL_BYTES_MAX // block_bytes)
        blocks = min(INT32_LIMIT // block + beyond + 1, fits)
    else:
        blocks = pool_blocks(reading, boundary, beyond)
    slots = _slots(places, block_size=block, pool_blocks=blocks)
    return replace(small, pool_blocks=blocks, slots=slots)


@st.composite
def _places(draw: st.DrawFn, *, block_size: int) -> tuple[tuple[int, int], ...]:
    """Rank of the block from the pool's end and offset of each token.

    Requests have runs of tokens, which go on in the next block; each may be followed by
    tokens that are not written.
    """
    places: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, _RUNS_MAX))):
        rank = draw(st.integers(0, _RANKS_MAX))
        first = draw(st.sampled_from(sorted({0, block_size - 1, block_size // 3})))
        tokens = draw(st.integers(1, min(_RUN_MAX, _RUN_BLOCKS_MAX * block_size)))
        for position in range(first, first + tokens):
            place = (rank + position // block_size, position % block_size)
            if place not in places:
                places.append(place)
        places += [_UNWRITTEN] * draw(st.sampled_from((0, 0, 1, 3)))
    return tuple(places)


def _slots(
    places: tuple[tuple[int, int], ...], *, block_size: int, pool_blocks: int
) -> tuple[int, ...]:
    return tuple(
        PADDING_SLOT
        if place == _UNWRITTEN
        else (pool_blocks - 1 - place[0]) * block_size + place[1]
        for place in places
    )
