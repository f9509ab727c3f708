"""KV-cache specs of layers as plain values, and how many bytes a page of each holds.

The arithmetic is written from what a layer stores (keys and values per token, scales,
recurrent states), not from vLLM's spec classes.
"""

from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

import msgspec

Kind = Literal["full", "sliding_window", "chunked_local", "mla", "mamba"]
KINDS: tuple[Kind, ...] = ("full", "sliding_window", "chunked_local", "mla", "mamba")
# Layers that keep one entry per token and read all of it.
WHOLE_CONTEXT: tuple[Kind, ...] = ("full", "mla")
WINDOWED: tuple[Kind, ...] = ("sliding_window", "chunked_local")

Dtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn", "int8", "uint8"]
DTYPE_BYTES: dict[Dtype, int] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "int8": 1,
    "uint8": 1,
}
# per_token_head: one float32 scale for K and one for V, per token and head.
Scales = Literal["none", "per_token_head"]
SCALE_BYTES = 4

CacheMode = Literal["none", "align", "all"]

Extent = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """What one attention layer stores per token.

    Attributes:
        num_kv_heads: KV heads on one rank; MLA stores one latent vector, so 1.
        head_size: Elements of a key, or of the MLA latent vector.
        head_size_v: Elements of a value; 0 for MLA, which has no separate values.
        window: Tokens of a sliding window or of a local chunk, else None.
        alignment: MLA only: its page is rounded up to a multiple of so many bytes.
        slot_bytes: Bytes per token and head where a backend packs keys, values and
            scales itself; None for the plain layout.
    """

    num_kv_heads: Extent
    head_size: Extent
    head_size_v: Annotated[int, msgspec.Meta(ge=0, le=2**20)]
    dtype: Dtype
    scales: Scales = "none"
    window: Extent | None = None
    alignment: Extent | None = None
    slot_bytes: Extent | None = None


@dataclass(frozen=True, kw_only=True)
class MambaState:
    """The recurrent state that one layer keeps per block, whatever its tokens."""

    shapes: tuple[tuple[Extent, ...], ...]
    dtypes: tuple[Dtype, ...]
    cache_mode: CacheMode
    num_speculative_blocks: Annotated[int, msgspec.Meta(ge=0, le=1024)]


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """The KV-cache spec of one layer.

    Attributes:
        block_size: Tokens per block.
        attention: Set for every kind but `mamba`.
        mamba: Set for the kind `mamba`.
        page_size_padded: Bytes of the page where it is larger than its content.
    """

    kind: Kind
    block_size: Extent
    attention: AttentionShape | None = None
    mamba: MambaState | None = None
    page_size_padded: Bytes | None = None


@dataclass(frozen=True, kw_only=True)
class SeenLayer:
    """A layer's spec as the tree holds it, and the page size that the tree says.

    Attributes:
        fields: All that the tree's spec says beside its block size and padding, by
            name, as text: more than `spec` models.
    """

    name: str
    page_bytes: Bytes
    spec: LayerSpec
    fields: tuple[tuple[str, str], ...] = ()


def content_bytes(spec: LayerSpec) -> int:
    """Bytes that one block of a layer holds, padding left out."""
    if spec.mamba is not None:
        return sum(
            prod(shape) * DTYPE_BYTES[dtype]
            for shape, dtype in zip(spec.mamba.shapes, spec.mamba.dtypes, strict=True)
        )
    assert spec.attention is not None
    stored = spec.attention
    per_head = stored.slot_bytes
    if per_head is None:
        per_head = (stored.head_size + stored.head_size_v) * DTYPE_BYTES[stored.dtype]
        if stored.scales == "per_token_head":
            per_head += 2 * SCALE_BYTES
    return spec.block_size * stored.num_kv_heads * per_head


def aligned(size_bytes: int, alignment: int | None) -> int:
    """A size rounded up to a multiple of an alignment."""
    return -(-size_bytes // (alignment or 1)) * (alignment or 1)


def page_bytes(spec: LayerSpec) -> int:
    """Bytes of one page: padded as asked for, or by the layer's own alignment."""
    if spec.page_size_padded is not None:
        return spec.page_size_padded
    stored = spec.attention
    return aligned(content_bytes(spec), stored.alignment if stored else None)


def family(spec: LayerSpec) -> str:
    """Layers of one family need the same blocks of a request, so may share a table."""
    if spec.kind in WHOLE_CONTEXT:
        return "whole context"
    window = spec.attention.window if spec.attention else None
    return spec.kind if window is None else f"{spec.kind} {window}"


def flaw(spec: LayerSpec) -> str | None:
    """What is wrong with a spec that a case was given, None when it is consistent."""
    if (spec.mamba is None) != (spec.kind != "mamba") or (
        (spec.attention is None) != (spec.kind == "mamba")
    ):
        return f"kind {spec.kind!r} wants a Mamba state or an attention shape, not both"
    wrong = _wrong_state(spec) if spec.mamba is not None else _wrong_shape(spec)
    if wrong is None and page_bytes(spec) < content_bytes(spec):
        wrong = f"padded to {page_bytes(spec)} bytes, content {content_bytes(spec)}"
    return wrong


def _wrong_state(spec: LayerSpec) -> str | None:
    state = spec.mamba
    assert state is not None
    if len(state.shapes) != len(state.dtypes) or not all(state.shapes):
        return f"{len(state.shapes)} state shapes, {len(state.dtypes)} dtypes"
    return None if content_bytes(spec) else "no state at all"


def _wrong_shape(spec: LayerSpec) -> str | None:
    shape, is_mla = spec.attention, spec.kind == "mla"
    assert shape is not None
    wrongs = {
        f"kind {spec.kind!r} with window {shape.window}": (
            (shape.window is not None) != (spec.kind in WINDOWED)
        ),
        f"kind {spec.kind!r} with head_size_v {shape.head_size_v}": (
            (shape.head_size_v == 0) != is_mla
        ),
        "MLA stores one latent vector and is padded by its alignment only": is_mla
        and (
            shape.num_kv_heads != 1
            or shape.scales != "none"
            or spec.page_size_padded is not None
        ),
        f"kind {spec.kind!r} with an alignment; only MLA has one": (
            shape.alignment is not None and not is_mla
        ),
        "packed slots are made by backends, not given": shape.slot_bytes is not None,
    }
    return next((text for text, holds in wrongs.items() if holds), None)
