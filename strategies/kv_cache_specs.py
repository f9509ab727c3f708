"""KV-cache specs of attention and Mamba layers, alone and in mixes.

Page sizes are related on purpose: sizes come from few values, and a layer's padding is
taken from another layer's page, so that equal, dividing and odd pages all occur.
"""

from dataclasses import dataclass, replace
from typing import get_args

from hypothesis import strategies as st

from invariants.specs import (
    KINDS,
    WINDOWED,
    AttentionShape,
    CacheMode,
    Dtype,
    Kind,
    LayerSpec,
    MambaState,
    content_bytes,
    page_bytes,
)
from strategies.block_sizes import DEPLOYED_BLOCK_SIZES

PLAIN_BLOCK_SIZES = (1, 16, 2, 3, 15, 17, 32, 64, 127, 128, 256, 1024)
HEADS = (1, 2, 3, 4, 5, 8, 16)
HEAD_SIZES = (1, 64, 128, 96, 192, 256, 512, 576)
WINDOWS = (1, 64, 127, 1024, 4096)
ATTENTION_DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32", "uint8", "float16")
STATE_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
STATE_HEADS = (1, 2, 4, 8, 16, 32)
STATE_SIZES = (1, 16, 64, 128)
SPECULATIVE_BLOCKS = (0, 1, 3, 7, 16)
# Pages of a related mix differ by small factors only.
RELATED_HEADS = (1, 2, 4, 8)
RELATED_DTYPES: tuple[Dtype, ...] = ("bfloat16", "uint8")
# A padded page is another layer's page divided by one of these, or a little slack.
DIVISORS = (1, 2, 3, 4)
SLACKS = (1, 64, 4096)
PADDING_CHOICES = 11


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """What an attention layer is drawn from."""

    blocks: st.SearchStrategy[int]
    heads: tuple[int, ...]
    head_sizes: tuple[int, ...] = HEAD_SIZES
    dtypes: tuple[Dtype, ...] = ATTENTION_DTYPES
    may_scale: bool = True


def block_sizes(*, deployed: bool = True, multiple: int = 1) -> st.SearchStrategy[int]:
    """Draw tokens per block.

    Args:
        deployed: Whether sizes known from real deployments are drawn too.
        multiple: Only sizes that are multiples of this.
    """
    sizes = PLAIN_BLOCK_SIZES + (DEPLOYED_BLOCK_SIZES if deployed else ())
    return st.sampled_from([size for size in sizes if size % multiple == 0])


def kv_cache_specs(
    *,
    kinds: tuple[Kind, ...] = KINDS,
    max_kv_heads: int = 16,
    deployed: bool = True,
) -> st.SearchStrategy[LayerSpec]:
    """Draw the unpadded spec of one layer.

    Args:
        kinds: Kinds to draw, the simplest first.
        max_kv_heads: Most KV heads of a layer.
        deployed: Whether block sizes known from real deployments are drawn too.

    Raises:
        ValueError: When `kinds` is empty or `max_kv_heads` is below 1.
    """
    if not kinds or max_kv_heads < 1:
        raise ValueError(
            f"kv_cache_specs wants kinds and max_kv_heads >= 1, got {kinds} and "
            f"{max_kv_heads}"
        )
    heads = tuple(count for count in HEADS if count <= max_kv_heads)
    return _specs(kinds, _Sizes(blocks=block_sizes(deployed=deployed), heads=heads))


@st.composite
def _specs(draw: st.DrawFn, kinds: tuple[Kind, ...], sizes: _Sizes) -> LayerSpec:
    kind = draw(st.sampled_from(kinds))
    if kind == "mamba":
        return draw(_mamba_specs(sizes.blocks))
    head_size = draw(st.sampled_from(sizes.head_sizes))
    is_mla = kind == "mla"
    dtype = draw(st.sampled_from(sizes.dtypes))
    # One byte per element and a scale per token and head, or the plain layout.
    may_scale = sizes.may_scale and not is_mla and dtype == "uint8"
    scaled = may_scale and draw(st.booleans())
    window = draw(st.sampled_from(WINDOWS)) if kind in WINDOWED else None
    # Values may be narrower than keys in full attention only.
    narrow = kind == "full" and head_size > 1 and draw(st.integers(0, 9)) == 9
    return LayerSpec(
        kind=kind,
        block_size=draw(sizes.blocks),
        attention=AttentionShape(
            num_kv_heads=1 if is_mla else draw(st.sampled_from(sizes.heads)),
            head_size=head_size,
            head_size_v=0 if is_mla else head_size // 2 if narrow else head_size,
            dtype=dtype,
            scales="per_token_head" if scaled else "none",
            window=window,
        ),
    )


@st.composite
def _mamba_specs(draw: st.DrawFn, blocks: st.SearchStrategy[int]) -> LayerSpec:
    heads = draw(st.sampled_from(STATE_HEADS))
    size = draw(st.sampled_from(STATE_SIZES))
    speculative = draw(st.sampled_from(SPECULATIVE_BLOCKS))
    dtype = draw(st.sampled_from(STATE_DTYPES))
    return LayerSpec(
        kind="mamba",
        block_size=draw(blocks),
        mamba=MambaState(
            # The convolution's inputs, then one matrix per head.
            shapes=((3 + speculative, heads * size), (heads, size, size)),
            dtypes=("bfloat16", dtype),
            cache_mode=draw(st.sampled_from(get_args(CacheMode))),
            num_speculative_blocks=speculative,
        ),
    )


@st.composite
def kv_cache_mixes(
    draw: st.DrawFn,
    *,
    kinds: tuple[Kind, ...] = KINDS,
    min_layers: int = 1,
    max_layers: int = 6,
    padded: bool = True,
    deployed: bool = True,
) -> tuple[LayerSpec, ...]:
    """Draw the layers of one model in dict order, some padded to others' pages.

    Args:
        draw: Given by Hypothesis.
        kinds: Kinds to draw, the simplest first.
        min_layers: Fewest layers.
        max_layers: Most layers.
        padded: Whether layers may be padded.
        deployed: Whether block sizes known from real deployments are drawn too.
    """
    sizes = _Sizes(blocks=block_sizes(deployed=deployed), heads=HEADS)
    related = draw(st.booleans())
    if related:
        head_size = draw(st.sampled_from(HEAD_SIZES))
        sizes = _Sizes(
            blocks=st.just(draw(sizes.blocks)),
            heads=RELATED_HEADS,
            head_sizes=(head_size, 2 * head_size),
            dtypes=RELATED_DTYPES,
            may_scale=False,
        )
    # A layer and its padding are drawn together, so that both shrink away together.
    choices = st.none() if not padded else st.none() | st.integers(0, PADDING_CHOICES)
    drawn = draw(
        st.lists(
            st.tuples(_specs(kinds, sizes), choices),
            min_size=min_layers,
            max_size=min(3, max_layers) if max_layers > min_layers else max_layers,
        )
    )
    pages = [page_bytes(spec) for spec, _ in drawn]
    if related and padded:
        # The usual reason for padding: a state's page grown to an attention page.
        drawn = [
            (spec, choice if spec.mamba is None else (choice or 0) | 1)
            for spec, choice in drawn
        ]
    distinct = [
        spec if choice is None else _padded(spec, pages, choice)
        for spec, choice in drawn
    ]
    # Real models repeat few specs in a pattern.
    more = draw(
        st.lists(st.sampled_from(distinct), max_size=max_layers - len(distinct))
    )
    return tuple(distinct + more)


def _padded(spec: LayerSpec, pages: list[int], choice: int) -> LayerSpec:
    """A spec padded to a part of another layer's page, or by some slack."""
    content = content_bytes(spec)
    shares = sorted(
        {
            page // divisor
            for page in pages
            for divisor in DIVISORS
            if page % divisor == 0 and page // divisor > content
        }
    )
    # Multiples of 4 are the slacks.
    if shares and choice % 4:
        size = shares[choice % len(shares)]
    else:
        size = content + SLACKS[choice % len(SLACKS)]
    if spec.attention is None or spec.kind != "mla":
        return replace(spec, page_size_padded=size)
    shape = replace(spec.attention, alignment=min(size, 2**20))
    return replace(spec, attention=shape)
