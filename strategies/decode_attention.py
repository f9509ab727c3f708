"""Launches of decode attention: ragged batches at the top of pools of any size.

Sizes that are compiled in come from a short list, as each new combination of them costs
as much as a hundred launches.
"""

from dataclasses import replace

from hypothesis import strategies as st

from invariants.decode_case import Cache, Case, Form
from invariants.model import Origin
from invariants.scheduling import PrefixLayout
from invariants.verify_case import INT32_LIMIT, Dtype
from strategies.block_sizes import NARROW, WIDE
from strategies.prefix_layouts import lifted_layout, prefix_layouts
from strategies.verify_attention import pool_blocks

# Form, types of elements and cache, query heads, KV heads, sizes of key and value,
# block size. Wired: latents of DeepSeek (512 and 64), MiniCPM3 (256 and 32) and of
# models with 256 and 64; heads of one rank.
_Configuration = tuple[Form, Dtype, Cache, int, int, int, int, int]
_WIRED: tuple[_Configuration, ...] = (
    ("latent", "bfloat16", "auto", 16, 1, 576, 512, 64),
    ("latent", "bfloat16", "auto", 5, 1, 288, 256, 16),
    ("latent", "float16", "auto", 1, 1, 576, 512, 16),
    ("latent", "bfloat16", "fp8", 20, 1, 288, 256, 32),
    ("latent", "float16", "auto", 32, 1, 576, 512, WIDE),
    ("latent", "bfloat16", "auto", 8, 1, 320, 256, 64),
)
_CONTRACT: tuple[_Configuration, ...] = (
    ("latent", "bfloat16", "auto", 16, 1, 576, 512, 1),
    ("latent", "float16", "fp8", 3, 1, 288, 256, 48),
    ("latent", "bfloat16", "auto", 2, 1, 80, 64, 16),
    ("sliced", "bfloat16", "auto", 6, 1, 96, 64, 17),
    ("heads", "bfloat16", "auto", 2, 2, 64, 64, 16),
    ("heads", "float16", "fp8", 3, 3, 32, 32, 1),
    ("heads", "bfloat16", "auto", 12, 3, 80, 48, 16),
    ("heads", "float16", "auto", 40, 2, 64, 64, NARROW),
)
_SPLITS = (1, 4, 8, 3)
_CAP = 30.0
# What decides the splits of wired cases: the step's own longest, or the model's.
_MODEL_LENGTHS = (0, 0, 2048, 8192)
_BOUNDARIES = ("small", "elements", "bytes", "unsigned")
_BEYOND = (2, 1, 0, 13, 1000)
_LONG_TOKENS = 1700
_SHORT_TOKENS = 130
_POOL_BLOCKS = 40


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin, max_requests: int = 6) -> Case:
    """Draw a launch.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones have what the release's backend makes.
        max_requests: Requests of the batch, at most; padding rows come beside them.
    """
    wired = origin == "wired"
    form, dtype, cache, heads, kv_heads, key, value, block = draw(
        st.sampled_from(_WIRED if wired else _CONTRACT)
    )
    query_len = draw(st.sampled_from((1, 1, 1, 2, 4))) if wired else 1
    layout = draw(
        _layouts(block_size=block, min_tokens=query_len, max_requests=max_requests)
    )
    order = "tokens" if wired else draw(st.sampled_from(("tokens", "tokens", "heads")))
    plain = draw(st.sampled_from((True, True, False)))
    layers, padding = (
        (1, 0)
        if plain
        else (draw(st.sampled_from((1, 3, 61))), draw(st.sampled_from((0, 16, 4096))))
    )
    longest = max(layout.num_tokens)
    small = Case(
        format_version=1,
        origin=origin,
        form=form,
        dtype=dtype,
        cache=cache,
        heads=heads,
        kv_heads=kv_heads,
        key_size=key,
        value_size=value,
        layout=layout,
        query_len=query_len,
        causal=query_len == 1 or draw(st.sampled_from((True, True, False))),
        max_seq_len=max(longest, draw(st.sampled_from(_MODEL_LENGTHS))) if wired else 0,
        splits=0 if wired else draw(st.sampled_from(_SPLITS)),
        spare_columns=draw(st.sampled_from((0, 64))),
        order=order,  # type: ignore[arg-type]
        layers=layers,
        padding=padding,
        flat=not wired and plain and order == "tokens" and draw(st.booleans()),
        logit_cap=0.0 if wired else draw(st.sampled_from((0.0, 0.0, _CAP))),
        scratch_padding=0,
        seed=draw(st.integers(0, 255)),
    )
    if not wired and draw(st.sampled_from((False, False, False, True))):
        small = replace(small, scratch_padding=_far_rows(small))
    boundary = draw(st.sampled_from(_BOUNDARIES))
    if boundary == "small":
        return small
    blocks = pool_blocks(small.reading, boundary, draw(st.sampled_from(_BEYOND)))
    return replace(small, layout=lifted_layout(layout, blocks))


def _far_rows(case: Case) -> int:
    """Elements between scratch rows that put the last one beyond 2^31, not the next.

    0 where there are too few rows for that.
    """
    if case.rows - 1 < 2:
        return 0
    return -(-INT32_LIMIT // (case.rows - 1))


@st.composite
def _layouts(
    draw: st.DrawFn, *, block_size: int, min_tokens: int, max_requests: int
) -> PrefixLayout:
    """Block tables; in some, requests without tokens follow the others."""
    long_rows = draw(st.sampled_from((False, False, False, True)))
    sharing = not long_rows and draw(st.booleans())
    layout = draw(
        prefix_layouts(
            min_requests=2 if sharing else 1,
            max_requests=2 if long_rows else max_requests,
            min_columns=2 if sharing else 1,
            max_columns=8,
            min_tokens=min_tokens,
            max_tokens=_LONG_TOKENS if long_rows else _SHORT_TOKENS,
            max_groups=1,
            min_block_size=block_size,
            max_block_size=block_size,
            max_pool_blocks=_POOL_BLOCKS,
            forgets=False,
        )
    )
    padding = draw(st.sampled_from((0, 0, 0, 1, 3)))
    return replace(
        layout,
        num_tokens=(*layout.num_tokens, *(0,) * padding),
        block_ids=tuple((*rows, *((),) * padding) for rows in layout.block_ids),
        prefix_tokens=(*layout.prefix_tokens, *(0,) * padding),
    )
