"""page-size-61528698: PAGE-UNIFY-ANSWER is broken at unify_kv_cache_spec_page_size.

Unifying page sizes returns, or raises the documented NotImplementedError.

Seen:      AssertionError '' for pages: full 64, mamba 32 (padded)
Severity:  crash
Input:     anything that the function's documented contract allows (origin: contract)
Found on:  vLLM 0.20.1 (tree 98647d69665e97fc), torch 2.13.0+cpu, triton 3.7.1,
           Python 3.11.7

Run it with Python 3.11 or 3.12, torch, triton and vLLM; nothing else is needed, no GPU
and no compiled vLLM either (vLLM's Python files and what they import are enough):

    python repro.py                 vLLM as installed
    python repro.py --vllm PATH     a folder that contains vllm/

BROKEN ARM runs the case on that vLLM as it is, FIXED ARM with the fix
at the end of this file applied in memory.
Exit status: 1 when the fault shows, 0 when it does not, 2 when neither is known. The
case is CASE_JSON; run() calls vLLM with it, judge() checks what came of it, FIXES holds
the fix.

Generated from case.json and kvfuzz's sources; do not edit, but generate it anew:
    python -m reproducers script page-size-61528698
"""

from __future__ import annotations

CASE_JSON = """\
{
  "config": null,
  "format_version": 1,
  "layers": [
    {
      "attention": {
        "alignment": null,
        "dtype": "bfloat16",
        "head_size": 1,
        "head_size_v": 1,
        "num_kv_heads": 1,
        "scales": "none",
        "slot_bytes": null,
        "window": null
      },
      "block_size": 16,
      "kind": "full",
      "mamba": null,
      "page_size_padded": null
    },
    {
      "attention": null,
      "block_size": 16,
      "kind": "mamba",
      "mamba": {
        "cache_mode": "none",
        "dtypes": ["bfloat16", "float32"],
        "num_speculative_blocks": 0,
        "shapes": [[3, 1], [1, 1, 1]]
      },
      "page_size_padded": 32
    }
  ],
  "origin": "contract"
}
"""

# ----------------------------------------------------------------------------
# invariants/specs.py
#
# KV-cache specs of layers as plain values, and how many bytes a page of each holds.
#
# The arithmetic is written from what a layer stores (keys and values per token, scales,
# recurrent states), not from vLLM's spec classes.
# ----------------------------------------------------------------------------

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

# ----------------------------------------------------------------------------
# invariants/page_layers.py
#
# What may become of one layer's spec on its way through planning.
#
# `given` is the layer as it was built, `final` as it will be allocated; each law is a
# statement about the two.
# ----------------------------------------------------------------------------

from dataclasses import replace
from typing import NamedTuple

# What planning for a drafter, or the spec that a group shares, may say anew of a layer:
# a window that is only noted, and what holds for the group if for any of its layers.
REPLANNED = frozenset(
    (
        *("sliding_window", "attention_chunk_size", "extra_retained_tokens"),
        *("non_causal", "is_draft"),
    )
)


class Fault(NamedTuple):
    """A broken law: its invariant's id, and the cause with its numbers."""

    law: str
    text: str


def layer_faults(
    *, given: SeenLayer, final: SeenLayer, may_pad: tuple[Kind, ...], promotes: bool
) -> list[Fault]:
    """Laws that a layer's final spec breaks.

    Args:
        given: The layer as its own code built it.
        final: The layer as it is to be allocated.
        may_pad: Kinds that the release reads through a padded stride.
        promotes: Whether a windowed layer may be allocated as full attention, as
            `--disable-hybrid-kv-cache-manager` documents.
    """
    name, old, new = given.name, given.spec, final.spec
    promoted = promotes and old.kind in WINDOWED and new.kind == "full"
    faults = []
    content = content_bytes(replace(old, block_size=new.block_size))
    if final.page_bytes < content:
        faults.append(
            Fault(
                "PAGE-CONTENT",
                f"{name}: {new.block_size} tokens hold {content} bytes, the page "
                f"{final.page_bytes}",
            )
        )
    if not _padding_is_read(given, final, may_pad):
        faults.append(
            Fault(
                "PAGE-STRIDE",
                f"{name}: a {new.kind} page of {content} bytes was padded to "
                f"{final.page_bytes}, and the release has no reader for that",
            )
        )
    changed = _changed(old, new, promoted=promoted) or _told_anew(
        given, final, replanned=promotes, promoted=promoted
    )
    if changed:
        faults.append(Fault("PAGE-FIELDS", f"{name}: {changed}"))
    if _half_empty(given, final, content):
        faults.append(
            Fault(
                "PAGE-WASTE",
                f"{name}: {content} bytes in a page of {final.page_bytes}, although "
                f"{2 * new.block_size} tokens fit where it keeps {new.block_size}",
            )
        )
    return faults


def refusal_needed(layers: tuple[SeenLayer, ...], must_pad: tuple[Kind, ...]) -> bool:
    """Whether no way that the release documents brings these layers to one page.

    Args:
        layers: As they were given.
        must_pad: Kinds that the release's documentation promises to pad; other layers
            must divide the largest page.
    """
    largest = max(layer.page_bytes for layer in layers)

    def unified(layer: SeenLayer) -> bool:
        if layer.page_bytes == largest or layer.spec.kind in must_pad:
            return True
        scales = layer.spec.mamba is None and not is_padded(layer)
        return scales and largest % layer.page_bytes == 0

    return not all(unified(layer) for layer in layers)


def is_padded(layer: SeenLayer) -> bool:
    """Whether a page is larger than its content or was told a size of its own."""
    return layer.spec.page_size_padded is not None or (
        layer.page_bytes != content_bytes(layer.spec)
    )


def has_small_padded_attention(layers: tuple[SeenLayer, ...]) -> bool:
    """Whether an attention layer is padded and yet below the largest page."""
    largest = max((layer.page_bytes for layer in layers), default=0)
    return any(
        layer.spec.mamba is None and is_padded(layer) and layer.page_bytes < largest
        for layer in layers
    )


def _padding_is_read(
    given: SeenLayer, final: SeenLayer, may_pad: tuple[Kind, ...]
) -> bool:
    """A kind with a reader, no padding, or no more of it per token than was given."""
    content = content_bytes(replace(given.spec, block_size=final.spec.block_size))
    if final.spec.kind in may_pad or final.page_bytes <= content:
        return True
    shape = given.spec.attention
    if shape is not None and shape.alignment is not None:
        return final.page_bytes == aligned(content, shape.alignment)
    return (
        final.page_bytes * given.spec.block_size
        == given.page_bytes * final.spec.block_size
    )


def _half_empty(given: SeenLayer, final: SeenLayer, content: int) -> bool:
    """Whether planning padded an attention page that twice the tokens would fit."""
    emptier = (
        final.page_bytes * given.spec.block_size
        > given.page_bytes * final.spec.block_size
    )
    return emptier and given.spec.mamba is None and 2 * content <= final.page_bytes


def _changed(old: LayerSpec, new: LayerSpec, *, promoted: bool) -> str | None:
    """The first field that planning changed and must not, with both values."""
    if old.kind != new.kind and not promoted:
        return f"kind {old.kind} became {new.kind}"
    if old.mamba != new.mamba:
        return f"state {old.mamba} became {new.mamba}"
    # Full attention notes the window of layers that it was merged with or was made of.
    windowed = new.kind in WINDOWED
    before = _stored(old.attention, windowed=windowed)
    after = _stored(new.attention, windowed=windowed)
    if before != after:
        return f"{before} became {after}"
    multiple = 1 if old.mamba is not None else new.block_size // old.block_size
    if new.block_size != old.block_size * multiple and not promoted:
        return f"blocks of {old.block_size} tokens became blocks of {new.block_size}"
    return None


def _told_anew(
    given: SeenLayer, final: SeenLayer, *, replanned: bool, promoted: bool
) -> str | None:
    """The first field beyond those that are modelled which says something else."""
    before, after = dict(given.fields), dict(final.fields)
    names = before.keys() & after.keys() if promoted else before.keys() | after.keys()
    for name in sorted(names - REPLANNED if replanned else names):
        if before.get(name) != after.get(name):
            return f"{name} {before.get(name)} became {after.get(name)}"
    return None


def _stored(shape: AttentionShape | None, *, windowed: bool) -> AttentionShape | None:
    if shape is None:
        return None
    # A group's merged spec has its padded page and no longer the reason for it.
    return replace(shape, alignment=None, window=shape.window if windowed else None)

# ----------------------------------------------------------------------------
# invariants/hybrid_config.py
#
# A hybrid model, its drafter and how they are served: configuration only, as values.
#
# From these the target builds layers, block sizes and specs with the tree's own code.
# ----------------------------------------------------------------------------

from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

import msgspec

LayerKind = Literal["full", "sliding_window", "mamba"]
CacheDtype = Literal["auto", "fp8", "int8_per_token_head", "fp8_per_token_head"]
Small = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**20)]


@dataclass(frozen=True, kw_only=True)
class TargetModel:
    """The model that is served; sizes are totals over all tensor-parallel ranks.

    Attributes:
        layers: Kinds in order; its `mamba` layers are gated delta rule layers, as in
            Qwen3-Next and Qwen3.5. With none of them the model is not hybrid.
        state_dtype: The recurrent state's; `auto` leaves it to the release.
        state_heads: Value heads of the state; `state_key_heads` its key heads.
        state_head_size: Rows of a head's state, `state_size` its columns.
        conv_kernel: Width of the short convolution.
        window: Sliding window of its `sliding_window` layers, in tokens.
    """

    layers: tuple[LayerKind, ...]
    num_kv_heads: Small
    head_size: Small
    dtype: Literal["bfloat16", "float16", "float32"]
    cache_dtype: CacheDtype
    window: Extent
    state_dtype: Literal["auto", "float32"]
    state_heads: Small
    state_key_heads: Small
    state_head_size: Small
    state_size: Small
    conv_kernel: Annotated[int, msgspec.Meta(ge=2, le=16)]


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """The draft model's attention layers, with pages in the same pool.

    Attributes:
        cache_dtype: Of its own cache, or `target` for the target's; releases that know
            no such option use the target's.
    """

    layers: tuple[Literal["full", "sliding_window"], ...]
    num_kv_heads: Small
    head_size: Small
    window: Extent
    cache_dtype: Literal["target", "auto", "fp8"]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the models are served.

    Attributes:
        num_speculative_tokens: Drafted per step; 0 without a drafter.
        mamba_cache_mode: `none` goes with prefix caching off. A release without the
            mode `all` uses `align`.
        block_size: Tokens per block asked for, None for the release's default.
        skip_sliding_window: Whether sliding-window layers keep the model's dtype
            although the cache is quantised (`--kv-cache-dtype-skip-layers`).
        skip_layer: Index of a layer that does, None for none.
        hybrid_manager: False is `--disable-hybrid-kv-cache-manager`.
        block_outermost: Whether backends declare only layouts with the block
            outermost; releases without such layouts ignore it.
        spare_blocks: Blocks of memory beyond (below) what one request of
            `max_model_len` tokens needs, the null block not counted; of two pipeline
            stages, one has some blocks more.
        spare_bytes: Bytes beyond (below) a whole number of blocks.
    """

    tensor_parallel: Small
    pipeline_stages: Annotated[int, msgspec.Meta(ge=1, le=2)]
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=0, le=64)]
    mamba_cache_mode: CacheMode
    block_size: Extent | None
    skip_sliding_window: bool
    skip_layer: Natural | None
    max_model_len: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    hybrid_manager: bool
    block_outermost: bool
    spare_blocks: Annotated[int, msgspec.Meta(ge=-(2**20), le=2**20)]
    spare_bytes: Annotated[int, msgspec.Meta(ge=-(2**20), le=2**20)]


@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """One wired case: who is served, with which drafter, and how."""

    target: TargetModel
    drafter: Drafter | None
    deployment: Deployment


def misfit(config: HybridConfig) -> str | None:
    """What keeps a configuration from describing a model, None when nothing does."""
    target, drafter, served = config.target, config.drafter, config.deployment
    ranks = served.tensor_parallel
    heads = [target.num_kv_heads] + ([drafter.num_kv_heads] if drafter else [])
    layers = len(target.layers) + (len(drafter.layers) if drafter else 0)
    wrongs = {
        "a model needs at least one layer, and a drafter too": (
            not target.layers or (drafter is not None and not drafter.layers)
        ),
        f"KV heads {heads} and {ranks} ranks: one must divide the other": any(
            head % ranks and ranks % head for head in heads
        ),
        f"state heads are split evenly over {ranks} ranks": bool(
            target.state_heads % ranks or target.state_key_heads % ranks
        ),
        "value heads of a state are a multiple of its key heads": bool(
            target.state_heads % target.state_key_heads
        ),
        "tokens are drafted by a drafter, and a drafter drafts": (
            (served.num_speculative_tokens > 0) != (drafter is not None)
        ),
        f"{layers} layers cannot fill {served.pipeline_stages} pipeline stages": (
            layers < served.pipeline_stages
        ),
        f"layer {served.skip_layer} to skip, of {layers}": (
            served.skip_layer is not None and served.skip_layer >= layers
        ),
        "layers are skipped of a quantised cache only": target.cache_dtype == "auto"
        and (served.skip_sliding_window or served.skip_layer is not None),
    }
    return next((text for text, holds in wrongs.items() if holds), None)


def built_faults(config: HybridConfig, layers: tuple[SeenLayer, ...]) -> list[Fault]:
    """Laws that specs break which do not hold what the configuration says.

    Args:
        config: The models; its layers in order, the drafter's after the target's.
        layers: The specs that the tree built; none when it did not come so far.
    """
    target, drafter = config.target, config.drafter
    kinds = target.layers + (drafter.layers if drafter else ())
    if layers and tuple(layer.spec.kind for layer in layers) != kinds:
        text = f"layers {kinds} became {[layer.spec.kind for layer in layers]}"
        return [Fault("PAGE-BUILT", text)]
    faults = []
    for number, layer in enumerate(layers):
        if layer.spec.mamba is not None:
            wrong = _state_unlike(config, layer.spec, layer.spec.mamba)
        else:
            wrong = _attention_unlike(config, number, layer.spec)
        if wrong:
            faults.append(Fault("PAGE-BUILT", f"{layer.name}: {wrong}"))
    return faults


def _attention_unlike(config: HybridConfig, number: int, spec: LayerSpec) -> str | None:
    target, drafter, served = config.target, config.drafter, config.deployment
    drafts = drafter is not None and number >= len(target.layers)
    model = drafter if drafter is not None and drafts else target
    heads = max(1, model.num_kv_heads // served.tensor_parallel)
    shape = spec.attention
    assert shape is not None
    if (shape.num_kv_heads, shape.head_size) != (heads, model.head_size):
        return (
            f"{shape.num_kv_heads} heads of {shape.head_size} where a rank has {heads} "
            f"of {model.head_size}"
        )
    if spec.kind == "sliding_window" and shape.window != model.window:
        return f"window {shape.window} where the model has {model.window}"
    skipped = number == served.skip_layer or (
        served.skip_sliding_window and spec.kind == "sliding_window"
    )
    stored = {"auto" if skipped else target.cache_dtype}
    if drafter is not None and drafts and drafter.cache_dtype != "target":
        stored.add(drafter.cache_dtype)
    plain = 2 * model.head_size
    allowed = set()
    for cache in stored:
        if cache == "auto":
            allowed.add(plain * DTYPE_BYTES[target.dtype])
        else:
            scales = 2 * SCALE_BYTES if cache.endswith("per_token_head") else 0
            allowed.add(plain + scales)
    held = content_bytes(spec) // spec.block_size // heads
    if held not in allowed:
        return f"{held} bytes per token and head, where {sorted(allowed)} are stored"
    return None


def _state_unlike(
    config: HybridConfig, spec: LayerSpec, state: MambaState
) -> str | None:
    target, served = config.target, config.deployment
    ranks, drafted = served.tensor_parallel, served.num_speculative_tokens
    channels = target.state_heads * target.state_head_size
    channels += 2 * target.state_key_heads * target.state_size
    # A draft step keeps the convolution's inputs of every drafted token.
    convolution = channels // ranks * (target.conv_kernel - 1 + drafted)
    recurrent = target.state_heads // ranks * target.state_head_size * target.state_size
    sizes = [prod(shape) for shape in state.shapes]
    if sizes != [convolution, recurrent]:
        return (
            f"states of {sizes} elements where the model has {convolution} and "
            f"{recurrent}"
        )
    # The convolution's state has the model's dtype, and so has the recurrent one where
    # `auto` leaves it to the release (`_mamba_state_dtype` of mamba_utils.py, 0.20.1).
    recurrent_dtype = target.dtype if target.state_dtype == "auto" else "float32"
    if state.dtypes != (target.dtype, recurrent_dtype):
        return (
            f"states of {state.dtypes} where the model has {target.dtype} and "
            f"{recurrent_dtype}"
        )
    if state.num_speculative_blocks != drafted:
        return f"{state.num_speculative_blocks} blocks for {drafted} drafted tokens"
    # Without prefix caching a request has one running state, whatever its length; with
    # it, a release that lacks a mode uses `align` (models/config.py, 0.20.1).
    asked = served.mamba_cache_mode
    if state.cache_mode not in ({asked} if asked == "none" else {asked, "align"}):
        return f"cache mode {state.cache_mode} where {asked} was asked for"
    if asked == "none" and spec.block_size != served.max_model_len:
        return (
            f"blocks of {spec.block_size} tokens without prefix caching, where a "
            f"request has at most {served.max_model_len}"
        )
    return None

# ----------------------------------------------------------------------------
# invariants/model.py
#
# The values that all rooms share: invariants, violations and judgements.
#
# Everything here is a frozen value with a JSON form, so that it crosses process
# borders, lands in files unchanged and can be compared.
# ----------------------------------------------------------------------------

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

# wired: widths, contents and specs were made by the release's own code.
# contract: anything that the function's documented contract allows.
Origin = Literal["wired", "contract"]
ORIGINS: tuple[Origin, ...] = ("wired", "contract")

Severity = Literal["crash", "corruption", "waste"]

FORMAT_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """One law of one target.

    Attributes:
        id: Stable name such as ``GDN-ALIGN-BOUNDS``; never reused for another law.
        target: The target's module name, such as ``page_size``.
        statement: The law in one sentence.
        severity: What breaking it does to a server.
        wired: Coverage labels that wired cases must have shown before a pass
            means anything; None when wired cases cannot judge this law.
        contract: The same for contract cases.
    """

    id: str
    target: str
    statement: str
    severity: Severity
    wired: tuple[str, ...] | None = None
    contract: tuple[str, ...] | None = None

    def labels_needed(self, origin: Origin) -> tuple[str, ...] | None:
        """Labels needed for a pass of this origin, None when it is not judged."""
        return self.wired if origin == "wired" else self.contract


@dataclass(frozen=True, kw_only=True)
class FaultKey:
    """What makes two violations the same fault.

    The origin is part of it: a fault shown on contract input only must not
    replace the evidence that the wired path reaches it.
    """

    target: str
    invariant: str
    origin: Origin
    site: str
    exception: str

    @property
    def id(self) -> str:
        """File-safe name: the target's slug and 8 hex digits of the key."""
        parts = (self.target, self.invariant, self.origin, self.site, self.exception)
        digest = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
        return f"{self.target.replace('_', '-')}-{digest[:8]}"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One invariant broken by one observation.

    Attributes:
        site: The symbol at fault without its module, which moves between releases:
            a function's qualified name, or ``kernel: expression``.
        message: The cause in one line, with the numbers a person can check.
        evidence: Further values by name.
        exception: Type name of the exception or death that showed it, else "".
    """

    invariant: str
    target: str
    origin: Origin
    site: str
    message: str
    evidence: Mapping[str, int | str | list[int]]
    exception: str = ""

    @property
    def key(self) -> FaultKey:
        """The fault that this violation is an instance of."""
        return FaultKey(
            target=self.target,
            invariant=self.invariant,
            origin=self.origin,
            site=self.site,
            exception=self.exception,
        )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the checks of one target say of one observation.

    Attributes:
        judged: Ids of the invariants that applied and were checked.
        violations: Those that did not hold; their invariants are in ``judged``.
        labels: Coverage labels that this case showed.
        skipped: The designed reason why nothing of the case ran, "" when it did.
    """

    judged: frozenset[str]
    violations: tuple[Violation, ...]
    labels: frozenset[str]
    skipped: str = ""

    def __post_init__(self) -> None:
        if self.skipped and self.judged:
            raise ValueError(
                f"skipped ({self.skipped}) and judged {sorted(self.judged)}: a case "
                "is one or the other"
            )
        stray = {violation.invariant for violation in self.violations} - self.judged
        if stray:
            raise ValueError(
                f"violations of invariants that were not judged: {sorted(stray)}; "
                "add them to judged"
            )


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception that escaped the code under test.

    Attributes:
        type: The exception's type name.
        message: Its text, at most 2,000 characters.
        site: Qualified name of the innermost function of the tree under test.
    """

    type: str
    message: str
    site: str


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of the isolated process that ran a case: an observation too.

    Attributes:
        cause: ``signal 11``, ``exit 3``, ``timed out``, ``memory limit``.
        detail: The last lines that the process wrote to stderr.
    """

    cause: str
    detail: str


def ending(exit_code: int) -> str:
    """How a process ended: ``exit 3``, or ``signal 11`` for an exit code of -11."""
    return f"signal {-exit_code}" if exit_code < 0 else f"exit {exit_code}"


class CaseError(ValueError):
    """A case or observation file that cannot be used; says why."""


def encode(value: object) -> str:
    """Canonical JSON of a frozen value: sorted keys, no spaces."""
    return msgspec.json.encode(value, order="sorted").decode()


def decode(text: str, kind: type[T]) -> T:
    """Read a value of ``kind`` strictly.

    Raises:
        CaseError: When the text is not JSON, a field is missing, unknown, of another
            type or outside its bounds.
    """
    try:
        raw = msgspec.json.decode(text)
        value = msgspec.json.decode(text, type=kind, strict=True)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise CaseError(f"not a valid {kind.__name__}: {error}") from error
    # msgspec ignores unknown fields of dataclasses and fills in defaults, so the
    # text must be exactly what the value says.
    if msgspec.json.decode(encode(value)) != raw:
        raise CaseError(
            f"not a valid {kind.__name__}: fields unknown to this format version, or "
            "left out; expected exactly "
            f"{sorted(msgspec.to_builtins(value))}"
        )
    return value


def digest(value: object) -> str:
    """16 hex digits that name a value's content."""
    return hashlib.sha256(encode(value).encode()).hexdigest()[:16]

# ----------------------------------------------------------------------------
# invariants/page_laws.py
#
# The catalogue of laws about page sizes: statements, severities, coverage labels.
# ----------------------------------------------------------------------------

TARGET = "page_size"


def _law(
    law: str,
    severity: Severity,
    statement: str,
    *,
    contract: tuple[str, ...] | None = None,
    wired: tuple[str, ...] | None = None,
) -> Invariant:
    return Invariant(
        id=law,
        target=TARGET,
        statement=statement,
        severity=severity,
        wired=wired,
        contract=contract,
    )


_MIXED = (
    "pages differ",
    "state below the largest page",
    "state of the largest page",
    "padded attention below the largest page",
)
_UNIFIED = ("unified", "changed")
_PLANNED = ("planned", "several groups", "drafter", "two stages")

INVARIANTS: tuple[Invariant, ...] = (
    _law(
        "PAGE-UNIFY-ANSWER",
        "crash",
        "Unifying page sizes returns, or raises the documented NotImplementedError.",
        contract=_MIXED,
    ),
    _law(
        "PAGE-UNIFY-REFUSAL",
        "crash",
        "It refuses only what the documented ways cannot bring to one page.",
        contract=("refused",),
    ),
    _law(
        "PAGE-UNIFY-ONE-SIZE",
        "crash",
        "All layers that unifying returns have one page size.",
        contract=_UNIFIED,
    ),
    _law(
        "PAGE-UNIFY-LAYERS",
        "corruption",
        "Unifying keeps the layers and their order.",
        contract=_UNIFIED,
    ),
    _law(
        "PAGE-UNIFY-INPUT",
        "corruption",
        "Unifying does not change its input.",
        contract=("pages differ", *_UNIFIED),
    ),
    _law(
        "PAGE-UNIFY-AGAIN",
        "corruption",
        "Unifying what was unified changes nothing.",
        contract=_UNIFIED,
    ),
    _law(
        "PAGE-UNIFY-ORDER",
        "corruption",
        "The order of the layers does not change what becomes of each.",
        contract=("pages differ", *_UNIFIED),
    ),
    _law(
        "PAGE-CONTENT",
        "corruption",
        "No page is smaller than what its block holds.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-STRIDE",
        "corruption",
        "Only layers that can be read through a padded stride are padded.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-FIELDS",
        "corruption",
        "Everything that a layer's spec says but block size and padding stays.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-WASTE",
        "waste",
        "An attention page is not padded to where twice its tokens would fit.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-BUILT",
        "corruption",
        "Layers' specs hold the heads, sizes and states of the configuration.",
        wired=("state", "drafter", "split over ranks", "quantised"),
    ),
    _law(
        "PAGE-PLAN-ANSWER",
        "crash",
        "Planning gives a plan, or a documented error, from any model and drafter.",
        wired=("state", "drafter", "drafter's page above the state's"),
    ),
    _law(
        "PAGE-PLAN-REFUSAL",
        "crash",
        "Planning refuses only too little memory and what cannot be brought together.",
        wired=("too little memory",),
    ),
    _law(
        "PAGE-PARTITION",
        "corruption",
        "Each layer is in exactly one group.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-FAMILY",
        "corruption",
        "Layers of one group are of one spec family and one block size.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-PLACES",
        "corruption",
        "Every layer has one place, and all its blocks lie inside the allocation.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-OVERLAP",
        "corruption",
        "Blocks that may be alive at once share no byte.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-MEMORY",
        "crash",
        "What is allocated fits the memory that was given.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-BLOCKS",
        "waste",
        "The number of blocks is what memory allows, the null block included.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-SERVES",
        "crash",
        "A plan that is accepted serves one request of the full length.",
        wired=("planned", "memory for just one request"),
    ),
)

# ----------------------------------------------------------------------------
# invariants/scheduling.py
#
# Plain values of one scheduling step: block tables of a pool, and who runs what.
#
# They say what a scheduler hands to its workers, without vLLM's classes, so that a
# target can build tensors from them and a reference model can be written over them.
# Block id 0 is the null block, which no request owns.
# ----------------------------------------------------------------------------

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

NULL_BLOCK = 0
# Asynchronous scheduling sends drafts to the worker before they exist: each is -1
# (vllm/v1/core/sched/async_scheduler.py, 0.20.1).
PLACEHOLDER_TOKEN = -1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=PLACEHOLDER_TOKEN, le=2**31 - 1)]
Row = tuple[BlockId, ...]

StepKind = Literal["new", "cached", "resumed"]


def columns_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` tokens: the quotient rounded up."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, kw_only=True)
class PrefixLayout:
    """Which blocks of one pool hold the tokens of each request, group by group.

    All KV-cache groups draw from one pool (``vllm/v1/core/kv_cache_coordinator.py``,
    0.20.1), so that an id has one owner over all groups, or is a shared prefix block:
    the same column of the same group in each of its owners.

    Attributes:
        pool_blocks: Ids are ``0 .. pool_blocks - 1``; 0 is the null block.
        block_sizes: ``[groups]`` tokens per block.
        num_tokens: ``[requests]`` tokens that have a slot.
        block_ids: ``[groups][requests][columns]``; column c holds the tokens from
            ``c * block_size`` on, or the null block where a group no longer needs them
            (sliding window, recurrent state): null columns lead a row.
        prefix_tokens: ``[requests]`` leading tokens whose blocks are shared with the
            other requests where it is not 0; a multiple of every block size.
        reused: Ids owned now that a finished request had owned: stale contents.
        freed: Ids free now that a finished request had owned.
        kept_columns: ``[groups]`` trailing columns that a group keeps of each row,
            0 for all of them; () when every group keeps all.
    """

    pool_blocks: Size
    block_sizes: tuple[Size, ...]
    num_tokens: tuple[Count, ...]
    block_ids: tuple[tuple[Row, ...], ...]
    prefix_tokens: tuple[Count, ...]
    reused: Row = ()
    freed: Row = ()
    kept_columns: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        requests = len(self.num_tokens)
        if len(self.block_ids) != len(self.block_sizes):
            raise ValueError(
                f"{len(self.block_ids)} groups of block tables for "
                f"{len(self.block_sizes)} block sizes; give one table per group"
            )
        if len(self.prefix_tokens) != requests:
            raise ValueError(
                f"{len(self.prefix_tokens)} prefix lengths for {requests} requests"
            )
        for group, (size, rows) in enumerate(
            zip(self.block_sizes, self.block_ids, strict=True)
        ):
            lengths = [len(row) for row in rows]
            expected = [columns_for(tokens, size) for tokens in self.num_tokens]
            if lengths != expected:
                raise ValueError(
                    f"group {group} has rows of {lengths} blocks; {self.num_tokens} "
                    f"tokens in blocks of {size} need {expected}"
                )
        self._check_nulls()
        owned = set(self.owned_ids())
        top = max([*owned, *self.freed, NULL_BLOCK])
        if top >= self.pool_blocks:
            raise ValueError(f"block id {top} in a pool of {self.pool_blocks} blocks")
        if not set(self.reused) <= owned:
            raise ValueError("reused blocks must be owned by a request")
        if owned & set(self.freed) or NULL_BLOCK in self.freed:
            raise ValueError("freed blocks must be neither owned nor the null block")

    def _check_nulls(self) -> None:
        if self.kept_columns and len(self.kept_columns) != len(self.block_sizes):
            raise ValueError(
                f"{len(self.kept_columns)} kept_columns for {len(self.block_sizes)} "
                "groups; give one per group, or () when every group keeps all"
            )
        for group, rows in enumerate(self.block_ids):
            for row in rows:
                nulls = self._nulls(group, len(row))
                if row[:nulls].count(NULL_BLOCK) != nulls or NULL_BLOCK in row[nulls:]:
                    raise ValueError(
                        f"a row of group {group} is {row}; its first {nulls} columns "
                        "must be the null block, and no others"
                    )

    def _nulls(self, group: int, columns: int) -> int:
        kept = self.kept_columns[group] if self.kept_columns else 0
        return max(columns - kept, 0) if kept else 0

    def owned_ids(self) -> Iterable[int]:
        """Ids in any row, the null block left out; shared ones several times."""
        for rows in self.block_ids:
            for row in rows:
                yield from (block for block in row if block != NULL_BLOCK)

    def null_columns(self, group: int, request: int) -> int:
        """Leading columns of a row that the group no longer needs."""
        return self._nulls(group, len(self.block_ids[group][request]))

    def forgotten_tokens(self, request: int) -> int:
        """Leading tokens of a request that some group no longer holds."""
        return max(
            self.null_columns(group, request) * size
            for group, size in enumerate(self.block_sizes)
        )


@dataclass(frozen=True, kw_only=True)
class RequestStep:
    """What one request does in a step (vllm/v1/core/sched/output.py, 0.20.1).

    Attributes:
        kind: ``new`` is scheduled for the first time, ``resumed`` again after a
            preemption (both come with their whole block table), ``cached`` goes on.
        num_prompt_tokens: Prompt length; a request decodes once it is computed.
        num_computed_tokens: Tokens computed before this step, prefix hits included.
        num_scheduled_tokens: Tokens of this step, drafts included.
        draft_token_ids: The last of the scheduled tokens, guessed: ids of the
            vocabulary, or `PLACEHOLDER_TOKEN` under asynchronous scheduling.
        new_block_ids: ``[groups][blocks]`` to append (``cached``) or to start with;
            None when a cached request needs none in any group.
    """

    kind: StepKind
    num_prompt_tokens: Count
    num_computed_tokens: Count
    num_scheduled_tokens: Count
    draft_token_ids: tuple[TokenId, ...]
    new_block_ids: tuple[Row, ...] | None

    @property
    def decodes(self) -> bool:
        """Whether the whole prompt had been computed before this step."""
        return self.num_computed_tokens >= self.num_prompt_tokens


@dataclass(frozen=True, kw_only=True)
class SchedulerOutput:
    """One step of a scheduler: every request of ``layout`` is scheduled.

    Attributes:
        layout: Block tables as they are after the step's allocations; request i has
            ``num_computed_tokens + num_scheduled_tokens`` tokens there.
        requests: ``[requests]``, same order as the layout's rows.
        num_common_prefix_blocks: ``[groups]`` leading columns that are the same in the
            rows of all requests, 0 in groups that do not keep every column (as
            ``get_num_common_prefix_blocks`` of ``single_type_kv_cache_manager.py``,
            0.20.1). One number per KV-cache group, whatever the speculative length.
        num_speculative_tokens: Drafts that a step may carry per request.
        vocab_size: Draft ids are below it.
        asynchronous: Whether drafts are placeholders.
    """

    layout: PrefixLayout
    requests: tuple[RequestStep, ...]
    num_common_prefix_blocks: tuple[Count, ...]
    num_speculative_tokens: Count
    vocab_size: Size
    asynchronous: bool

    def __post_init__(self) -> None:
        totals = tuple(
            step.num_computed_tokens + step.num_scheduled_tokens
            for step in self.requests
        )
        if totals != self.layout.num_tokens:
            raise ValueError(
                f"steps end at {totals} tokens, the layout holds "
                f"{self.layout.num_tokens}; each row must end where its step does"
            )
        if len(self.num_common_prefix_blocks) != len(self.layout.block_sizes):
            raise ValueError(
                f"{len(self.num_common_prefix_blocks)} common-prefix counts for "
                f"{len(self.layout.block_sizes)} KV-cache groups; give one per group"
            )

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(step.num_scheduled_tokens for step in self.requests)


def common_prefix_columns(rows: Iterable[Row]) -> int:
    """Leading columns that are the same block in every row, 0 without rows."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) != 1 or column[0] == NULL_BLOCK:
            break
        count += 1
    return count

# ----------------------------------------------------------------------------
# invariants/page_plan.py
#
# Laws of a KV-cache plan: groups of layers, and where each layer's pages lie.
#
# Places are judged as byte ranges: block b of a layer is at offset + b * stride, and no
# two blocks that may be alive at once share a byte.
# ----------------------------------------------------------------------------

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

Stage = Literal["align", "specs", "groups", "configs", "done"]
# Of layers with different strides, so many first and last blocks are compared.
COMPARED_BLOCKS = 16
# A pool has one block that no request gets.
NULL_BLOCKS = 1
# A window's blocks are kept while steps are in flight: one for each of two pipeline
# stages, and as many that are scheduled ahead.
STEPS_IN_FLIGHT = 4
# States of an aligned request beside its drafts': the one read, the one written, and
# one for any release that keeps another.
ALIGNED_STATES = 3


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a layer's pages lie: block b at ``offset + b * stride`` bytes.

    Attributes:
        allocation: Which allocation of the worker, from 0.
        allocation_bytes: Its size.
    """

    layer: str
    allocation: int
    allocation_bytes: Bytes
    offset: Bytes
    stride: Bytes


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One pipeline stage's plan; `layers` are those it was given."""

    layers: tuple[str, ...]
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)]
    num_blocks: int
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How far a configuration came, and what the tree made of it.

    Attributes:
        stage: The stage that raised, or ``done``.
        layers: As their layers' own code built them.
        groups: The layers of each group with their final specs.
        stages: Names of each worker's layers.
        memory_bytes: What each worker was given, once groups were known.
    """

    stage: Stage
    raised: Raised | None
    layers: tuple[SeenLayer, ...] = ()
    groups: tuple[tuple[SeenLayer, ...], ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    memory_bytes: tuple[Bytes, ...] = ()
    workers: tuple[Worker, ...] = ()


def bytes_per_block(
    groups: tuple[tuple[SeenLayer, ...], ...], layers: tuple[str, ...]
) -> int:
    """Bytes that one block costs a worker with these layers.

    A block id belongs to one group at a time, so it needs room for the pages of the
    group that has most.
    """
    return max(
        sum(layer.page_bytes for layer in group if layer.name in layers)
        for group in groups
    )


def blocks_needed(
    groups: tuple[tuple[SeenLayer, ...], ...], served: Deployment, *, at_most: bool
) -> int:
    """Blocks that one request of `max_model_len` tokens holds at its end.

    Args:
        groups: The plan's groups, with final block sizes.
        served: Says how long the request is.
        at_most: False for a number that it cannot do with less than (the last token's
            entry is never written), True for one that is surely enough.
    """
    count = _enough_blocks if at_most else _fewest_blocks
    return sum(count(group[0].spec, served) for group in groups)


def _fewest_blocks(spec: LayerSpec, served: Deployment) -> int:
    if spec.mamba is not None:
        return 1 + spec.mamba.num_speculative_blocks
    tokens = max(served.max_model_len - 1, 1)
    if spec.kind not in WHOLE_CONTEXT:
        window = spec.attention.window if spec.attention else None
        tokens = min(tokens, window or 1) if spec.kind == "sliding_window" else 1
    return columns_for(tokens, spec.block_size)


def _enough_blocks(spec: LayerSpec, served: Deployment) -> int:
    """What one request holds by the most generous of the documented counts."""
    blocks = columns_for(served.max_model_len, spec.block_size)
    if spec.mamba is not None:
        kept = blocks if spec.mamba.cache_mode == "all" else 0
        return kept + ALIGNED_STATES + spec.mamba.num_speculative_blocks
    if spec.kind in WHOLE_CONTEXT:
        return blocks
    window = spec.attention.window if spec.attention else None
    if window is not None:
        kept_tokens = window + STEPS_IN_FLIGHT * served.max_num_batched_tokens
        blocks = min(blocks, columns_for(kept_tokens, spec.block_size))
    # A window need not start with a block.
    return blocks + 1


def group_faults(plan: Plan, may_pad: tuple[Kind, ...]) -> list[Fault]:
    """Laws of grouping that a plan breaks."""
    names = Counter(layer.name for group in plan.groups for layer in group)
    given = {layer.name: layer for layer in plan.layers}
    faults: list[Fault] = []
    if names != Counter(given.keys()):
        off = sorted(n for n in {*names, *given} if names[n] != (n in given))
        faults.append(
            Fault(
                "PAGE-PARTITION", f"layers not in exactly one group: {', '.join(off)}"
            )
        )
    for number, group in enumerate(plan.groups):
        kinds = {(family(layer.spec), layer.spec.block_size) for layer in group}
        if len(kinds) > 1:
            text = ", ".join(f"{kind} by {size}" for kind, size in sorted(kinds))
            faults.append(Fault("PAGE-FAMILY", f"group {number} holds {text} tokens"))
        for layer in group:
            if layer.name in given:
                faults += layer_faults(
                    given=given[layer.name], final=layer, may_pad=may_pad, promotes=True
                )
    return faults


def worker_faults(plan: Plan, served: Deployment) -> list[Fault]:
    """Laws of memory that the workers' plans break."""
    faults: list[Fault] = []
    per_block = [bytes_per_block(plan.groups, worker.layers) for worker in plan.workers]
    allowed = min(
        worker.memory_bytes // block
        for worker, block in zip(plan.workers, per_block, strict=True)
    )
    for number, (worker, block) in enumerate(zip(plan.workers, per_block, strict=True)):
        sizes = {place.allocation: place.allocation_bytes for place in worker.places}
        if sum(sizes.values()) > worker.memory_bytes:
            faults.append(
                Fault(
                    "PAGE-MEMORY",
                    f"worker {number} allocates {sum(sizes.values())} bytes of the "
                    f"{worker.memory_bytes} it was given",
                )
            )
        if worker.num_blocks != allowed:
            faults.append(
                Fault(
                    "PAGE-BLOCKS",
                    f"worker {number} plans {worker.num_blocks} blocks of {block} "
                    f"bytes; memory allows {allowed}",
                )
            )
        faults += _place_faults(worker, plan.groups)
    needed = blocks_needed(plan.groups, served, at_most=False)
    usable = min(worker.num_blocks for worker in plan.workers) - NULL_BLOCKS
    if usable < needed:
        faults.append(
            Fault(
                "PAGE-SERVES",
                f"one request of {served.max_model_len} tokens needs {needed} blocks, "
                f"and {usable} are left beside the null block",
            )
        )
    return faults


def _place_faults(
    worker: Worker, groups: tuple[tuple[SeenLayer, ...], ...]
) -> list[Fault]:
    placed = Counter(place.layer for place in worker.places)
    if placed != Counter(worker.layers):
        return [
            Fault("PAGE-PLACES", f"layers {worker.layers} have places {dict(placed)}")
        ]
    page = {layer.name: layer.page_bytes for group in groups for layer in group}
    group_of = {layer.name: g for g, group in enumerate(groups) for layer in group}
    last = worker.num_blocks - 1
    for place in worker.places:
        end = place.offset + last * place.stride + page[place.layer]
        if end > place.allocation_bytes or place.stride < page[place.layer]:
            return [
                Fault(
                    "PAGE-PLACES",
                    f"{place.layer}: {worker.num_blocks} pages of {page[place.layer]} "
                    f"bytes, {place.stride} apart from {place.offset}, do not fit "
                    f"{place.allocation_bytes} bytes",
                )
            ]
    for number, one in enumerate(worker.places):
        for other in worker.places[:number]:
            same_group = group_of[one.layer] == group_of[other.layer]
            if one.allocation == other.allocation and _collide(
                one, other, page, last, same_block=same_group
            ):
                return [
                    Fault(
                        "PAGE-OVERLAP",
                        f"blocks of {other.layer} and {one.layer} that may be alive at "
                        "once share bytes",
                    )
                ]
    return []


def _collide(
    one: Place, other: Place, page: dict[str, int], last: int, *, same_block: bool
) -> bool:
    """Whether pages of two different blocks, or of one if it may be, share bytes."""
    if one.stride == other.stride:
        # Only the distance of the two block numbers matters.
        around = (one.offset - other.offset) // one.stride
        pairs = [(d, 0) if d >= 0 else (0, -d) for d in range(-around - 2, 3 - around)]
    else:
        blocks = {*range(COMPARED_BLOCKS), *range(last + 1 - COMPARED_BLOCKS, last + 1)}
        pairs = [(b, c) for b in blocks for c in blocks if min(b, c) >= 0]
    for b, c in pairs:
        if max(b, c) > last or (b == c and not same_block):
            continue
        start = one.offset + b * one.stride
        other_start = other.offset + c * other.stride
        if (
            start < other_start + page[other.layer]
            and other_start < start + page[one.layer]
        ):
            return True
    return False

# ----------------------------------------------------------------------------
# invariants/page_refusal.py
#
# When planning may refuse a configuration, and what a configuration exercises.
# ----------------------------------------------------------------------------

from dataclasses import replace

REFUSAL = "NotImplementedError"
BAD_VALUE = "ValueError"
# Kernels of every attention backend take blocks of multiples of so many tokens.
BACKEND_TOKENS = 16
# Says in its message that an aligned block must fit a step's tokens.
BLOCK_CHECK = "VllmConfig.validate_block_size"


def refusal_faults(
    config: HybridConfig, plan: Plan, must_pad: tuple[Kind, ...]
) -> list[Fault] | None:
    """Judge a plan that raised: None when the error is not a documented one.

    Documented are the check of the aligned block size, ValueError for too little
    memory, for layers that cannot become one type with the hybrid manager off and for
    a block size that no backend takes, and NotImplementedError for pages that cannot
    be unified. Each is needless where a plan plainly exists.
    """
    assert plan.raised is not None
    where = (plan.raised.type, plan.stage)
    if where == (REFUSAL, "groups"):
        needed = refusal_needed(plan.layers, must_pad)
        text = f"refused pages {[layer.page_bytes for layer in plan.layers]}"
    elif where == (BAD_VALUE, "groups"):
        needed = not config.deployment.hybrid_manager and not _promotable(plan.layers)
        text = (
            "refused to group layers although the hybrid manager is on"
            if config.deployment.hybrid_manager
            else "refused layers that are one type once windows are full attention"
        )
    elif where == (BAD_VALUE, "configs"):
        needed = not _ample(config, plan)
        text = f"refused memory of {plan.memory_bytes} bytes, enough for a request"
    elif where == (BAD_VALUE, "align") or plan.raised.site == BLOCK_CHECK:
        needed = not _any_block_fits(config)
        text = "refused a block size although no state asks for any"
    else:
        return None
    return [] if needed else [Fault("PAGE-PLAN-REFUSAL", text)]


def _any_block_fits(config: HybridConfig) -> bool:
    """Whether blocks of any size would do that backends take, and such a one is given.

    It would not where a block must hold a state, or skipped layers share a page with
    quantised ones: both make the blocks grow.
    """
    served = config.deployment
    grows = (
        "mamba" in config.target.layers
        or served.skip_sliding_window
        or served.skip_layer is not None
    )
    return not grows and not (served.block_size or 0) % BACKEND_TOKENS


def _promotable(layers: tuple[SeenLayer, ...]) -> bool:
    """Whether layers are of one type, or plainly become so as full attention.

    Layers that store the same, some of the whole context and the others of one window:
    what ``--disable-hybrid-kv-cache-manager`` is documented for.
    """
    families = {family(each.spec) for each in layers}
    if len(families) == 1:
        return True
    shapes = {
        (
            each.spec.block_size,
            each.page_bytes,
            replace(each.spec.attention, window=None),
        )
        for each in layers
        if each.spec.attention is not None
    }
    kinds = {each.spec.kind for each in layers}
    return (
        kinds == {"full", "sliding_window"} and len(families) == 2 and len(shapes) == 1
    )


def _ample(config: HybridConfig, plan: Plan) -> bool:
    """Whether memory holds one request by the most generous count of its blocks."""
    blocks = NULL_BLOCKS + blocks_needed(plan.groups, config.deployment, at_most=True)
    return all(
        memory >= blocks * bytes_per_block(plan.groups, stage)
        for memory, stage in zip(plan.memory_bytes, plan.stages, strict=True)
    )


def plan_labels(config: HybridConfig, plan: Plan) -> set[str]:
    """Coverage labels of a wired case."""
    target, drafter, served = config.target, config.drafter, config.deployment
    states = [layer for layer in plan.layers if layer.spec.mamba is not None]
    drafted = plan.layers[len(target.layers) :]
    spare = []
    if plan.memory_bytes:
        needed = blocks_needed(plan.groups, served, at_most=False)
        spare = [
            memory // bytes_per_block(plan.groups, stage) - needed
            for memory, stage in zip(plan.memory_bytes, plan.stages, strict=True)
        ]
    too_little = plan.stage == "configs" and plan.raised is not None
    shown = {
        "state": "mamba" in target.layers,
        "no state": "mamba" not in target.layers,
        "drafter": drafter is not None,
        "drafter's page above the state's": bool(states)
        and any(layer.page_bytes > states[0].page_bytes for layer in drafted),
        "padded state": any(
            layer.page_bytes > content_bytes(layer.spec) for layer in states
        ),
        "split over ranks": served.tensor_parallel > 1,
        "two stages": served.pipeline_stages > 1,
        "quantised": target.cache_dtype != "auto",
        "skipped layers": served.skip_sliding_window or served.skip_layer is not None,
        "hybrid manager off": not served.hybrid_manager,
        "block outermost": served.block_outermost,
        "planned": plan.stage == "done",
        "several groups": len(plan.groups) > 1,
        "too little memory": too_little,
        "memory for just one request": any(0 <= blocks <= 1 for blocks in spare),
        "padded attention below the largest page": has_small_padded_attention(
            plan.layers
        ),
    }
    return {label for label, holds in shown.items() if holds}

# ----------------------------------------------------------------------------
# invariants/page_size.py
#
# Page sizes of hybrid models: what unifying and planning KV-cache pages must keep.
#
# A contract case is a mix of layer specs for `unify_kv_cache_spec_page_size`; a wired one
# is a model, a drafter and a deployment that the tree's own code turns into specs, groups
# and memory. The laws themselves: page_laws, page_layers, page_plan.
# ----------------------------------------------------------------------------

from dataclasses import dataclass
from typing import Literal

__all__ = ["INVARIANTS", "Case", "Observation", "judge"]

UNIFY = "unify_kv_cache_spec_page_size"
# Where a wrong page ends: unifying asserts its size, the spec that it is large enough.
PADDING_SITES = (UNIFY, "AttentionSpec.page_size_bytes")
PADDED_ATTENTION = f"{UNIFY}: padded attention"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Layers in dict order for a contract case, a configuration for a wired one."""

    format_version: Literal[1]
    origin: Origin
    layers: tuple[LayerSpec, ...] = ()
    config: HybridConfig | None = None

    def __post_init__(self) -> None:
        if (self.config is None) != (self.origin == "contract") or (
            bool(self.layers) != (self.origin == "contract")
        ):
            raise ValueError("a contract case has layers, a wired one a configuration")
        wrong = [flaw(spec) for spec in self.layers]
        wrong.append(misfit(self.config) if self.config else None)
        if found := next((text for text in wrong if text), None):
            raise ValueError(found)


@dataclass(frozen=True, kw_only=True)
class Unified:
    """What one call of `unify` gave: layers in its order, or what it raised."""

    raised: Raised | None
    layers: tuple[SeenLayer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnifyCalls:
    """Calls of `unify` on one mix of layers.

    Attributes:
        given: The input before the first call; `kept` the same input after it.
        first: The call; `again` a call on its result, None when it raised.
        reordered: A call on the same layers in the opposite dict order.
    """

    given: tuple[SeenLayer, ...]
    kept: tuple[SeenLayer, ...]
    first: Unified
    again: Unified | None
    reordered: Unified


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the tree did.

    Attributes:
        may_pad: Kinds whose padded pages this release can read.
        must_pad: Kinds that its documentation promises to pad.
    """

    may_pad: tuple[Kind, ...]
    must_pad: tuple[Kind, ...]
    unify: UnifyCalls | None = None
    plan: Plan | None = None


def judge(case: Case, observation: Observation) -> Judgement:
    """Judge one observation; see `page_laws` for the laws.

    Raises:
        ValueError: The observation is not one of this case's origin.
    """
    if case.origin == "contract" and observation.unify is not None:
        return _judge_unify(observation.unify, observation)
    if case.config is not None and observation.plan is not None:
        return _judge_plan(case.config, observation.plan, observation)
    raise ValueError(
        f"a {case.origin} case wants "
        f"{'unify calls' if case.origin == 'contract' else 'a plan'} observed"
    )


def _violation(
    fault: Fault, *, origin: Origin, site: str, raised: Raised | None = None
) -> Violation:
    return Violation(
        invariant=fault.law,
        target=TARGET,
        origin=origin,
        site=site,
        message=fault.text,
        evidence={} if raised is None else {"raised": raised.message},
        exception="" if raised is None else raised.type,
    )


def _escape(
    law: str, raised: Raised, layers: tuple[SeenLayer, ...], origin: Origin
) -> Violation:
    """The violation that an undocumented exception is."""
    shown = ", ".join(
        f"{layer.spec.kind} {layer.page_bytes}{' (padded)' if is_padded(layer) else ''}"
        for layer in layers
    )
    text = f"{raised.type} {raised.message!r:.200} for pages: {shown or 'none yet'}"
    # A page that was padded before is another cause than a state that cannot be scaled,
    # with the same assertion at its end.
    padded = raised.site in PADDING_SITES and has_small_padded_attention(layers)
    site = PADDED_ATTENTION if padded else raised.site
    return _violation(Fault(law, text), origin=origin, site=site, raised=raised)


def _judge_unify(calls: UnifyCalls, observation: Observation) -> Judgement:
    given, labels = calls.given, _mix_labels(calls.given)
    answer = "PAGE-UNIFY-ANSWER"
    judged = {answer, "PAGE-UNIFY-INPUT"}
    violations = []
    faults = []
    if calls.kept != given:
        faults.append(Fault("PAGE-UNIFY-INPUT", "the layers that were passed changed"))
    raised = calls.first.raised
    if raised is not None and raised.type != REFUSAL:
        violations.append(_escape(answer, raised, given, "contract"))
    elif raised is not None:
        judged |= {"PAGE-UNIFY-REFUSAL", "PAGE-UNIFY-ORDER"}
        labels.add("refused")
        if not refusal_needed(given, observation.must_pad):
            text = f"refused pages {[layer.page_bytes for layer in given]}"
            faults.append(Fault("PAGE-UNIFY-REFUSAL", text))
        if calls.reordered.raised is None:
            text = "refuses these layers, and not in the opposite order"
            faults.append(Fault("PAGE-UNIFY-ORDER", text))
    else:
        labels.add("unified")
        new = {layer.name: layer for layer in calls.first.layers}
        if any(old.name in new and new[old.name] != old for old in given):
            labels.add("changed")
        judged |= {law.id for law in INVARIANTS if "unified" in (law.contract or ())}
        faults += _unified_faults(calls, observation)
    violations += [_violation(fault, origin="contract", site=UNIFY) for fault in faults]
    return Judgement(
        judged=frozenset(judged),
        violations=tuple(violations),
        labels=frozenset(labels),
    )


def _unified_faults(calls: UnifyCalls, observation: Observation) -> list[Fault]:
    old = {layer.name: layer for layer in calls.given}
    new = {layer.name: layer for layer in calls.first.layers}
    sizes = sorted({layer.page_bytes for layer in calls.first.layers})
    faults = []
    if len(sizes) > 1:
        faults.append(Fault("PAGE-UNIFY-ONE-SIZE", f"pages of {sizes} bytes"))
    if list(old) != [layer.name for layer in calls.first.layers]:
        text = f"layers {list(old)} became {list(new)}"
        faults.append(Fault("PAGE-UNIFY-LAYERS", text))
    if calls.again != calls.first:
        text = "unifying the result changes it, or fails"
        faults.append(Fault("PAGE-UNIFY-AGAIN", text))
    other = calls.reordered
    if other.raised is not None or new != {seen.name: seen for seen in other.layers}:
        text = "the opposite order of layers gives other specs, or fails"
        faults.append(Fault("PAGE-UNIFY-ORDER", text))
    for name in old.keys() & new.keys():
        faults += layer_faults(
            given=old[name],
            final=new[name],
            may_pad=observation.may_pad,
            promotes=False,
        )
    return sorted(faults)


def _mix_labels(layers: tuple[SeenLayer, ...]) -> set[str]:
    largest = max((layer.page_bytes for layer in layers), default=0)
    labels = set()
    for layer in layers:
        below = layer.page_bytes < largest
        if below:
            labels.add("pages differ")
        if layer.spec.mamba is not None:
            where = "below the largest page" if below else "of the largest page"
            labels.add(f"state {where}")
        elif below and largest % layer.page_bytes:
            labels.add("attention page that does not divide")
    if has_small_padded_attention(layers):
        labels.add("padded attention below the largest page")
    return labels


def _judge_plan(
    config: HybridConfig, plan: Plan, observation: Observation
) -> Judgement:
    answer = "PAGE-PLAN-ANSWER"
    judged = {answer}
    violations = []
    faults = [
        ("get_kv_cache_spec", fault) for fault in built_faults(config, plan.layers)
    ]
    if plan.layers:
        judged.add("PAGE-BUILT")
    if plan.raised is not None:
        refused = refusal_faults(config, plan, observation.must_pad)
        if refused is None:
            violations.append(_escape(answer, plan.raised, plan.layers, "wired"))
        else:
            judged.add("PAGE-PLAN-REFUSAL")
            faults += [("get_kv_cache_configs", fault) for fault in refused]
    else:
        judged |= {law.id for law in INVARIANTS if "planned" in (law.wired or ())}
        faults += [
            ("get_kv_cache_groups", fault)
            for fault in group_faults(plan, observation.may_pad)
        ]
        if not any(fault.law == "PAGE-PARTITION" for _, fault in faults):
            faults += [
                ("get_kv_cache_configs", fault)
                for fault in worker_faults(plan, config.deployment)
            ]
    violations += [
        _violation(fault, origin="wired", site=site) for site, fault in faults
    ]
    return Judgement(
        judged=frozenset(judged),
        violations=tuple(violations),
        labels=frozenset(plan_labels(config, plan)),
    )

# ----------------------------------------------------------------------------
# fuzz/edits.py
#
# Changes to the tree under test, as plain values: fixes, mutants and controls.
#
# A `SourceEdit` rewrites one expression in a function's own source as it is loaded; a
# `Replacement` puts a function of ours in its place. Both are JSON values, so that an
# isolated process can apply them too. `applied` puts everything back at its end.
# ----------------------------------------------------------------------------

import __future__

import hashlib
import importlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


class EditError(Exception):
    """An edit that does not fit the tree; says which function and what it lacks."""


@dataclass(frozen=True, kw_only=True)
class SourceEdit:
    """This text becomes that one, once, in a function's own source.

    Attributes:
        modules: Where the function may live, first found wins (releases move code).
        function: Qualified name: ``function`` or ``Class.method``.
        old: Exact source text, found exactly once.
        new: What takes its place.
    """

    modules: tuple[str, ...]
    function: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A function of ours in a function's place.

    Attributes:
        modules: Where the function may live, first found wins.
        function: Qualified name: ``function`` or ``Class.method``.
        implementation: ``module:name`` of ours, called with the original's arguments.
    """

    modules: tuple[str, ...]
    function: str
    implementation: str


Edit = SourceEdit | Replacement


def _located(modules: tuple[str, ...], function: str) -> tuple[ModuleType, Any, Any]:
    """The module, the holder (module or class) and the current value of a function."""
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        holder: Any = module
        *classes, last = function.split(".")
        for part in classes:
            holder = getattr(holder, part, None)
        if holder is not None and last in vars(holder):
            return module, holder, vars(holder)[last]
    raise EditError(
        f"no function {function!r} in {', '.join(modules)} of this tree; "
        "name the module where this release keeps it"
    )


def function_source(modules: tuple[str, ...], function: str) -> str:
    """Dedented source of a function of the tree, decorators included.

    Raises:
        EditError: When no module has it.
    """
    _, _, current = _located(modules, function)
    return textwrap.dedent(inspect.getsource(_plain(current)))


def _plain(value: Any) -> Any:
    """The Python function inside a staticmethod, classmethod or Triton's wrappers."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    while hasattr(value, "fn"):
        # A JIT function, and what autotunes it or computes some of its arguments.
        value = value.fn
    return value


def _recompiled(module: ModuleType, holder: Any, function: str, source: str) -> Any:
    """Run a function's new source in its module's namespace; give what it defines."""
    last = function.rsplit(".", 1)[-1]
    if isinstance(holder, type):
        # `super()` without arguments finds its class in a variable around the method.
        body = textwrap.indent(source, "    ")
        source = f"def method_of(__class__):\n{body}\n    return {last}\n"
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<edited {module.__name__}:{function} {digest}>"
    # Triton and inspect read a function's source through linecache.
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    defined: dict[str, Any] = {}
    # Annotations of a module that postpones them may name what only checkers import.
    postponed = vars(module).get("annotations") is __future__.annotations
    flags = __future__.annotations.compiler_flag if postponed else 0
    code = compile(source, filename, "exec", flags=flags, dont_inherit=True)
    exec(code, module.__dict__, defined)  # noqa: S102 (the tree's own source, edited)
    if not isinstance(holder, type):
        return defined[last]
    method = defined["method_of"](holder)
    plain = _plain(method)
    # Tracebacks name the method as the tree does.
    plain.__qualname__ = function
    plain.__code__ = plain.__code__.replace(co_qualname=function)
    return method


def _edited(edit: SourceEdit) -> tuple[Any, Any, Any]:
    module, holder, current = _located(edit.modules, edit.function)
    source = function_source(edit.modules, edit.function)
    count = source.count(edit.old)
    if count != 1:
        raise EditError(
            f"{edit.function} of {module.__name__} holds the text {edit.old!r} "
            f"{count} times; an edit needs it exactly once"
        )
    new = _recompiled(module, holder, edit.function, source.replace(edit.old, edit.new))
    return holder, current, new


def _replaced(edit: Replacement) -> tuple[Any, Any, Any]:
    _, holder, current = _located(edit.modules, edit.function)
    home, _, name = edit.implementation.partition(":")
    implementation: Any = getattr(importlib.import_module(home), name)
    if isinstance(current, staticmethod | classmethod):
        implementation = type(current)(implementation)
    return holder, current, implementation


def _holders(holder: Any, function: str, value: Any) -> Iterator[tuple[Any, str]]:
    """Whatever calls a function by a name of its own, and that name.

    Its home, its importers, and what a decorator of the home made to launch it (from
    0.33.0 on, `_expand` keeps `expand_kernel` as its `kernel`).
    """
    if not isinstance(holder, ModuleType):
        yield holder, function
        return
    # The tree's package and our targets; thousands of other modules cannot have it.
    roots = {holder.__name__.partition(".")[0], "fuzz"}
    for name, module in list(sys.modules.items()):
        known = name.partition(".")[0] in roots and module is not None
        if known and vars(module).get(function) is value:
            yield module, function
    for launcher in list(vars(holder).values()):
        if not isinstance(launcher, ModuleType | type):
            kept = dict(getattr(launcher, "__dict__", {}))
            yield from ((launcher, name) for name in kept if kept[name] is value)


@contextmanager
def applied(*edits: Edit) -> Iterator[None]:
    """Apply edits to the loaded tree, in order, and undo them at the end.

    A module-level function is changed in every module of the tree that imported it by
    name, so that its callers see the change; one that is imported while the edit is in
    force gets the original back at the end too.

    Raises:
        EditError: When an edit does not fit this tree; nothing stays changed.
    """
    undo: list[tuple[Any, str, Any, Any]] = []
    try:
        for edit in edits:
            made = _edited(edit) if isinstance(edit, SourceEdit) else _replaced(edit)
            holder, current, new = made
            last = edit.function.rsplit(".", 1)[-1]
            undo.append((holder, last, current, new))
            for each, name in list(_holders(holder, last, current)):
                setattr(each, name, new)
        yield
    finally:
        for holder, last, current, new in reversed(undo):
            for each, name in list(_holders(holder, last, new)):
                setattr(each, name, current)


def fitting(edits: tuple[SourceEdit, ...]) -> SourceEdit:
    """The first of several alternatives that fits the loaded tree.

    Raises:
        EditError: When none does; tells why each does not.
    """
    reasons = []
    for edit in edits:
        try:
            _edited(edit)
        except EditError as error:
            reasons.append(str(error))
        else:
            return edit
    raise EditError("no edit fits this tree: " + "; ".join(reasons))

# ----------------------------------------------------------------------------
# fuzz/runtime.py
#
# What a target declares about the process that may run it, and its planted faults.
# ----------------------------------------------------------------------------

from dataclasses import dataclass
from typing import Literal

@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The process that a target needs.

    Attributes:
        platform: The platform that vLLM is to believe in; one per process.
        triton: ``jit`` for Triton's real JIT classes without a device, ``interpret``
            for its interpreter.
        isolated: Whether a case may kill its process; such cases run in another.
        timeout_s: How long one isolated case may take.
        memory_bytes: Resident memory that one isolated case may reach, mapped files
            left out.
    """

    platform: Literal["cpu"] = "cpu"
    triton: Literal["jit", "interpret"] = "jit"
    isolated: bool = False
    timeout_s: float = 60.0
    memory_bytes: int = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Control:
    """A fault planted in the tree that every run must find, or the run is void.

    Attributes:
        name: Shown in the report, such as ``page_size: pads to the smallest page``.
        origin: Which cases are drawn.
        edits: The plant: alternatives, first that fits the tree is used. Empty when
            the strategy's own control cases carry the fault.
        invariant: Id of the invariant that must break.
        cases: Within how many cases it must be found.
    """

    name: str
    origin: Origin
    edits: tuple[SourceEdit, ...]
    invariant: str
    cases: int

# ----------------------------------------------------------------------------
# reproducers/fix.py
#
# A fixed implementation, as edits of the tree under test.
# ----------------------------------------------------------------------------

from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Fix:
    """Code of ours that makes a site satisfy its invariants.

    Attributes:
        name: What it does, in a few words.
        sites: The sites (symbols without module) whose faults it cures.
        edits: Applied together; a fix whose edits do not fit a tree is passed over for
            the next of the same site.
    """

    name: str
    sites: tuple[str, ...]
    edits: tuple[Edit, ...]

# ----------------------------------------------------------------------------
# reproducers/fixing.py
#
# Which fixed implementation cures a site on the loaded tree.
#
# Its source is inlined in reproducer scripts, where the fixes stand in the same file.
# ----------------------------------------------------------------------------

class NoFix(Exception):
    """No fix fits; says why each does not.

    Attributes:
        written: Whether there is a fix for this site at all.
    """

    def __init__(self, message: str, *, written: bool) -> None:
        super().__init__(message)
        self.written = written


def fitting_fix(fixes: tuple[Fix, ...], site: str) -> Fix:
    """The first fix of a site whose edits fit the loaded tree.

    Raises:
        NoFix: When none does.
    """
    reasons = []
    for fix in fixes:
        if site not in fix.sites:
            continue
        try:
            with applied(*fix.edits):
                return fix
        except EditError as error:
            reasons.append(f"{fix.name!r}: {error}")
    if reasons:
        raise NoFix(f"{'; '.join(reasons)}", written=True)
    raise NoFix(f"nobody has written a fix for {site}", written=False)

# ----------------------------------------------------------------------------
# reproducers/outcome.py
#
# What running a saved case says about its fault, as values.
#
# Imports nothing but the shared values: its source is inlined in reproducer scripts.
# ----------------------------------------------------------------------------

from dataclasses import dataclass
from typing import Literal

# fails: the fault shows. differs: its law is broken, but in another way. holds: the law
# was checked and kept. unproven: the check did not apply, so nothing is known.
# absent: this tree has no such code. unfit: no fix fits this tree. errored: no verdict.
ArmStatus = Literal[
    "fails", "differs", "holds", "unproven", "absent", "unfit", "errored"
]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One run of a case: on the tree as it is (broken arm), or with a fix applied.

    Attributes:
        message: The cause in one line.
        others: Violations of other laws that the same case showed, a line each.
    """

    status: ArmStatus
    message: str
    others: tuple[str, ...] = ()


def judged_arm(judgement: Judgement, key: FaultKey) -> Arm:
    """What a judgement says about one fault."""
    if judgement.skipped:
        return Arm(status="absent", message=f"not applicable: {judgement.skipped}")
    same_law = [v for v in judgement.violations if v.invariant == key.invariant]
    others = tuple(
        violation_line(violation)
        for violation in judgement.violations
        if violation.invariant != key.invariant
    )
    for violation in same_law:
        if violation.key == key:
            return Arm(status="fails", message=violation.message, others=others)
    if same_law:
        lines = "; ".join(violation_line(violation) for violation in same_law)
        return Arm(
            status="differs",
            message=f"{key.invariant} is broken in another way than recorded: {lines}",
            others=others,
        )
    if key.invariant in judgement.judged:
        return Arm(status="holds", message=f"{key.invariant} holds", others=others)
    return Arm(
        status="unproven",
        message=f"{key.invariant} did not apply to what this tree did with the case",
        others=others,
    )


def violation_line(violation: Violation) -> str:
    """A violation in one line, with the ID under which it would be saved."""
    return (
        f"{violation.key.id} ({violation.invariant} at {violation.site}): "
        f"{violation.message}"
    )

# ----------------------------------------------------------------------------
# reproducers/standalone.py
#
# The main part of every repro.py: run one case on the real code, as it is and fixed.
#
# Each arm runs in a child process of the same script, so that a killed process is an
# observation like any other. Its source is inlined: it may use the standard library and
# the shared values only.
# ----------------------------------------------------------------------------

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ARM_OPTION = "--arm"
STARTUP_LIMIT_S = 600.0
POLL_S = 0.05
STDERR_LINES = 12

EXIT_HOLDS, EXIT_FAILS, EXIT_ERRORED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a script claims: this case breaks this law on an unfixed tree.

    Attributes:
        case: The target's `Case`.
        runtime: Limits of an arm; where it is isolated, the death of its process is an
            expected outcome.
        judge: Judges what was observed of the case.
    """

    key: FaultKey
    case: Any
    runtime: Runtime
    judge: Callable[[Any, Any], Judgement]


def is_arm(arguments: list[str]) -> bool:
    """Whether this process is the child that runs one arm."""
    return ARM_OPTION in arguments


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run one case on vLLM's real code, as it is and with a fix. Exit "
        "status: 1 when the fault shows, 0 when it does not, 2 when neither is known."
    )
    parser.add_argument(
        "--vllm",
        type=Path,
        metavar="PATH",
        help="a folder that contains vllm/ (default: vLLM as installed)",
    )
    parser.add_argument(ARM_OPTION, choices=("broken", "fixed"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def put_tree_first(arguments: list[str]) -> None:
    """Make `import vllm` mean the tree that was asked for."""
    tree = _options(arguments).vllm
    if tree is not None:
        sys.path.insert(0, str(tree.resolve()))


def run_both(claim: Claim, arguments: list[str]) -> int:
    """Run both arms, print what they show, and give the exit status."""
    options = _options(arguments)
    put_tree_first(arguments)
    if (
        options.vllm is not None
        and not (options.vllm / "vllm" / "__init__.py").is_file()
    ):
        print(f"--vllm {options.vllm}: no vllm/__init__.py in this folder; give the")
        print("folder that contains vllm/, of a checkout or an unpacked release")
        return EXIT_ERRORED
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here; install it, or give --vllm PATH, a folder")
        print("that contains vllm/")
        return EXIT_ERRORED
    print(f"{claim.key.id}: {claim.key.invariant} at {claim.key.site}", flush=True)
    broken = _shown("BROKEN ARM", _in_child("broken", claim, options.vllm))
    if broken.status in ("absent", "unproven"):
        return EXIT_HOLDS
    fixed = _shown("FIXED ARM", _in_child("fixed", claim, options.vllm))
    if broken.status == "fails":
        return EXIT_FAILS
    sound = broken.status == "holds" and fixed.status in ("holds", "unfit")
    return EXIT_HOLDS if sound else EXIT_ERRORED


def _shown(name: str, arm: Arm) -> Arm:
    print(f"{name}: {arm.status}: {arm.message}", flush=True)
    for line in arm.others:
        print(f"  another fault shows on this case: {line}", flush=True)
    return arm


def _in_child(arm: str, claim: Claim, tree: Path | None) -> Arm:
    """Run one arm in a process of its own and read what it observed."""
    with tempfile.TemporaryDirectory(prefix="repro-") as name:
        out = Path(name)
        command = [sys.executable, *(["-I"] if sys.flags.isolated else [])]
        command += [str(Path(sys.argv[0]).resolve()), ARM_OPTION, arm, "--out", name]
        # What vLLM remembers of model classes belongs to the tree it saw them in.
        environment = {**os.environ, "VLLM_CACHE_ROOT": str(out / "cache")}
        if tree is not None:
            command += ["--vllm", str(tree.resolve())]
            # vLLM starts processes of its own, which are to find the same tree.
            inherited = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
            paths = [str(tree.resolve()), *inherited]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (out / "log").open("wb") as log:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                cause = _awaited(child, out, claim.runtime)
            finally:
                _kill(child)
        if (out / "result").exists():
            return decode((out / "result").read_text(encoding="utf-8"), Arm)
        lines = (out / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        detail = "\n".join(lines[-STDERR_LINES:])
        if claim.runtime.isolated and (out / "ready").exists():
            death = Death(cause=cause, detail=detail)
            return judged_arm(claim.judge(claim.case, death), claim.key)
        return Arm(status="errored", message=f"the process ended ({cause}):\n{detail}")


def _awaited(child: "subprocess.Popen[bytes]", out: Path, runtime: Runtime) -> str:
    """Wait for a child within its limits; the cause of its end."""
    deadline = time.monotonic() + STARTUP_LIMIT_S
    ready = False
    while child.poll() is None:
        if not ready and (out / "ready").exists():
            ready = True
            deadline = time.monotonic() + runtime.timeout_s
        if time.monotonic() > deadline:
            return "timed out"
        if ready and _resident_bytes(child.pid) > runtime.memory_bytes:
            return "memory limit"
        time.sleep(POLL_S)
    return ending(child.returncode)


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process, mapped files (libraries) left out.

    0 where the system does not tell, or the process ended.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    sizes = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE)
    return sum(1024 * int(kibibytes) for kibibytes in sizes)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """End a child and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_arm(
    claim: Claim,
    arguments: list[str],
    *,
    run: Callable[[Any], object],
    absent: Callable[[], str | None],
    fixes: tuple[Fix, ...],
    home: str,
) -> None:
    """Run one arm in this process and leave its result in the folder ``--out``.

    Args:
        claim: The case and its fault.
        arguments: Command line.
        run: Runs the real code on the case.
        absent: Why this tree has no such code, else None.
        fixes: The first whose site and edits fit is the fixed arm's.
        home: Module in which the functions that fixes name are found.
    """
    options = _options(arguments)
    (options.out / "ready").touch()
    try:
        reason = absent()
        if reason is not None:
            result = Arm(status="absent", message=f"not applicable: {reason}")
        elif options.arm == "broken":
            result = judged_arm(claim.judge(claim.case, run(claim.case)), claim.key)
        else:
            result = _fixed(claim, run, fixes, home)
    except Exception:  # noqa: BLE001 - reported to the parent as the arm's outcome
        result = Arm(status="errored", message=traceback.format_exc())
    partial = options.out / "result.partial"
    partial.write_text(encode(result), encoding="utf-8")
    partial.rename(options.out / "result")


def _fixed(
    claim: Claim, run: Callable[[Any], object], fixes: tuple[Fix, ...], home: str
) -> Arm:
    here = tuple(
        replace(fix, edits=tuple(_at_home(edit, home) for edit in fix.edits))
        for fix in fixes
    )
    try:
        fix = fitting_fix(here, claim.key.site)
    except NoFix as error:
        return Arm(status="unfit", message=str(error))
    with applied(*fix.edits):
        observation = run(claim.case)
    arm = judged_arm(claim.judge(claim.case, observation), claim.key)
    return replace(arm, message=f"{arm.message} ({fix.name})")


def _at_home(edit: Edit, home: str) -> Edit:
    """The same edit, its function looked up in the module that holds everything."""
    if isinstance(edit, Replacement):
        name = edit.implementation.partition(":")[2]
        return replace(edit, implementation=f"{home}:{name}")
    return edit

# ----------------------------------------------------------------------------
# The case and what is claimed of it; the first process ends here.
# ----------------------------------------------------------------------------

RUNTIME = Runtime(platform="cpu", triton="jit")

CASE = decode(CASE_JSON, Case)
CLAIM = Claim(
    key=FaultKey(
        target='page_size',
        invariant='PAGE-UNIFY-ANSWER',
        origin='contract',
        site='unify_kv_cache_spec_page_size',
        exception='AssertionError',
    ),
    case=CASE,
    runtime=RUNTIME,
    judge=judge,
)

if __name__ == "__main__" and not is_arm(sys.argv[1:]):
    sys.exit(run_both(CLAIM, sys.argv[1:]))

# ----------------------------------------------------------------------------
# fuzz/boot.py
#
# Make a process fit to import vLLM without a GPU and without compiled extensions.
#
# Settles, before anything imports vLLM, what vLLM asks of the machine: the platform (by
# the version of its distribution), whether Triton works (by a stub driver), threads,
# network. Imports nothing of this project: its source is inlined in reproducer scripts.
# ----------------------------------------------------------------------------

import atexit
import ctypes
import functools
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

PLATFORMS = ("cpu",)
TRITON_MODES = ("jit", "interpret")

# TRITON_CACHE_AUTOTUNING: vLLM's env_override turns it on, and made-up timings would
# enter the user's Triton cache. VLLM_TARGET_DEVICE names the platform from 0.28 on.
# VLLM_PLUGINS="" admits no plugin of the environment, which could change the platform.
# A GPU of this machine is hidden, and torch counts GPUs by NVML, for to count none it
# would start the CUDA driver. That starts a thread, and so does pyarrow's allocator
# (pandas imports it); a process with threads cannot be forked from.
FIXED_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "TRITON_CACHE_AUTOTUNING": "0",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}
# A person who looks for the cause of something may set these otherwise.
DEFAULT_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
}


class KernelLaunchError(RuntimeError):
    """A Triton kernel was launched in a process that cannot run kernels."""


def prepare(*, platform: str, triton: str) -> None:
    """Make this process, and those it starts, fit to import vLLM.

    Call it once, before anything imports vLLM; again with the same arguments, it does
    nothing. No distribution named vllm needs to be installed.

    Args:
        platform: What vLLM is to believe it runs on; one of `PLATFORMS`.
        triton: `jit` gives Triton's real JIT functions over a stub driver, and a launch
            raises `KernelLaunchError`; `interpret` runs kernels in Triton's own
            interpreter on CPU tensors.

    Raises:
        ValueError: An argument is not one of the known values.
        RuntimeError: vLLM was imported before, this process was prepared otherwise, or
            Triton was imported in another mode.
    """
    if platform not in PLATFORMS:
        msg = f"platform {platform!r} is unknown; known: {', '.join(PLATFORMS)}"
        raise ValueError(msg)
    if triton not in TRITON_MODES:
        msg = f"triton mode {triton!r} is unknown; known: {', '.join(TRITON_MODES)}"
        raise ValueError(msg)
    wanted = (platform, triton)
    done = _prepared_as()
    if done == wanted:
        return
    if done is not None:
        msg = (
            f"this process was prepared for platform={done[0]!r}, triton={done[1]!r} "
            f"and cannot become platform={platform!r}, triton={triton!r}: "
            "start another process for it"
        )
        raise RuntimeError(msg)
    if "vllm" in sys.modules:
        msg = (
            "vllm is imported already, and it fixed its platform and its Triton at "
            "that moment: call prepare() before the first import of vllm"
        )
        raise RuntimeError(msg)
    _set_triton_mode(triton)
    os.environ.update(FIXED_ENVIRONMENT)
    for name, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Some releases (0.33.0) configure their logging only when a server starts, and
    # Python prints warnings of loggers that nobody configured.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    _declare_cpu_distribution()
    _hide_broken_torchvision()
    _refuse_nvml()
    _describe_missing_gpu()
    _install_stub_driver()
    if triton == "jit":
        _refuse_launches()
    sys.modules["triton"].kvfuzz_prepared = wanted  # type: ignore[attr-defined]


def _prepared_as() -> tuple[str, str] | None:
    """The arguments of the call that prepared this process, noted on Triton itself."""
    prepared: tuple[str, str] | None = getattr(
        sys.modules.get("triton"), "kvfuzz_prepared", None
    )
    return prepared


def _set_triton_mode(mode: str) -> None:
    """Choose JIT or interpreter, which Triton asks the environment at each decorator.

    Its own library functions are decorated when it is imported, so that the mode of a
    process is fixed from then on.
    """
    wanted = "1" if mode == "interpret" else "0"
    if "triton" in sys.modules:
        import triton

        if triton.knobs.runtime.interpret != (mode == "interpret"):
            msg = (
                f"triton is imported already with TRITON_INTERPRET="
                f"{os.environ.get('TRITON_INTERPRET', '')!r}, which does not suit mode "
                f"{mode!r}: call prepare() before the first import of triton"
            )
            raise RuntimeError(msg)
    os.environ["TRITON_INTERPRET"] = wanted


def _declare_cpu_distribution() -> None:
    """Answer "which version of vllm is installed" with one that ends in `+cpu`.

    Up to 0.27 that suffix alone makes vLLM choose its CPU platform
    (`vllm/platforms/__init__.py`, `cpu_platform_plugin`), and in every release it keeps
    the CUDA platform from being detected beside it on a machine with a GPU. Where the
    distribution on `sys.path` does not say so, one in a folder of its own does, for
    this process and (through PYTHONPATH) for those that vLLM starts.
    """
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "0.0.0"
    if "cpu" in version:
        return
    version = version.partition("+")[0] + "+cpu"
    folder = Path(tempfile.mkdtemp(prefix="kvfuzz-boot-"))
    atexit.register(_remove_if_ours, folder, os.getpid())
    record = folder / f"vllm-{version}.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
    )
    sys.path.insert(0, str(folder))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), *([inherited] if inherited else [])]
    )
    importlib.invalidate_caches()


def _remove_if_ours(folder: Path, owner_pid: int) -> None:
    """Remove a temporary folder when its maker ends, not when a fork of it does."""
    if os.getpid() == owner_pid:
        shutil.rmtree(folder, ignore_errors=True)


def _hide_broken_torchvision() -> None:
    """Make a torchvision that cannot be imported look absent.

    One built for another torch fails with "operator torchvision::nms does not exist"
    inside transformers, and with it the import of vLLM.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError, AttributeError):
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def _refuse_nvml() -> None:
    """Make NVIDIA's management library look absent, as on a machine without a GPU.

    To count GPUs by it starts a thread that stays. 0.20.1 does so whatever its own
    version says (`vllm/platforms/__init__.py`, `cuda_platform_plugin`).
    """
    original = ctypes.CDLL.__init__

    @functools.wraps(original)
    def load(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        if "libnvidia-ml" in str(name):
            msg = f"{name} is kept from this process, which is to see no GPU"
            raise OSError(msg)
        original(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = load  # type: ignore[method-assign]


def _describe_missing_gpu() -> None:
    """Cap torch's threads, and answer the questions about a GPU that imports ask.

    The flash-linear-attention operations ask torch for name and capability of GPU 0 as
    soon as Triton's driver says CUDA (`vllm/model_executor/layers/fla/ops/utils.py` in
    0.20.1). `torch.cuda.is_available()` goes on saying the truth: none is visible.
    """
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.cuda.get_device_name = lambda device=None: "NVIDIA H100 (a stub)"  # noqa: ARG005
        torch.cuda.get_device_capability = lambda device=None: (9, 0)  # noqa: ARG005


def absent_backend() -> Any:
    """A Triton backend that compiles for no target and whose driver is not there."""
    from triton.backends import Backend
    from triton.backends.compiler import BaseBackend

    class InactiveDriver:
        """A driver that is not there."""

        @staticmethod
        def is_active() -> bool:
            return False

    class NoTarget(BaseBackend):  # type: ignore[misc]
        """A compiler for no target at all."""

        @staticmethod
        def supports_target(_target: Any) -> bool:
            return False

    return Backend(compiler=NoTarget, driver=InactiveDriver)


def _install_stub_driver() -> None:
    """Give Triton exactly one active driver, of a GPU that nobody has.

    vLLM turns Triton off unless it counts one active driver at import
    (`vllm/triton_utils/importing.py`); from 0.24 on it also wants a backend named
    `cpu` when its own version says `cpu`. That entry compiles for no target.
    """
    import torch
    import triton
    from triton.backends import Backend, backends
    from triton.backends.compiler import GPUTarget

    class DeviceProperties:
        """Bytes of shared memory of the described GPU (CUDA, capability 9.0)."""

        @staticmethod
        def get_device_properties(_device: int) -> dict[str, int]:
            return {"max_shared_mem": 232448}

    class StubDriver:
        """What JIT functions, the autotuner and vLLM's modules ask of a driver."""

        utils = DeviceProperties

        @staticmethod
        def is_active() -> bool:
            return True

        @staticmethod
        def get_current_target() -> Any:
            return GPUTarget("cuda", 90, 32)

        @staticmethod
        def get_current_device() -> int:
            return 0

        @staticmethod
        def get_current_stream(_device: int) -> int:
            return 0

        @staticmethod
        def get_active_torch_device() -> torch.device:
            return torch.device("cpu")

        @staticmethod
        def get_benchmarker() -> Callable[..., list[float]]:
            # Timings mean nothing here: all alike, the first configuration wins.
            return lambda _call, quantiles=(0.5, 0.2, 0.8), **_: [1.0] * len(quantiles)

    absent = absent_backend()
    for name, backend in list(backends.items()):
        backends[name] = Backend(compiler=backend.compiler, driver=absent.driver)
    backends["nvidia"] = Backend(
        compiler=backends["nvidia"].compiler, driver=StubDriver
    )
    backends.setdefault("cpu", absent)
    triton.runtime.driver.set_active(StubDriver())


def _refuse_launches() -> None:
    """Make every launch of a JIT function raise; the original is at `__wrapped__`."""
    from triton.runtime.jit import JITFunction

    @functools.wraps(JITFunction.run)
    def run(self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        kernel = f"{self.fn.__module__}.{self.fn.__qualname__}"
        msg = (
            f"kernel {kernel} was launched, and this process (platform cpu, triton "
            "jit) has no GPU to run it on: launch it inside checked_launches(), or in "
            'a process prepared with triton="interpret", or on a CUDA machine'
        )
        raise KernelLaunchError(msg)

    JITFunction.run = run

# ----------------------------------------------------------------------------
# vLLM can be imported from here on.
# ----------------------------------------------------------------------------

put_tree_first(sys.argv[1:])
prepare(platform=RUNTIME.platform, triton=RUNTIME.triton)

# ----------------------------------------------------------------------------
# fuzz/targets/_escaped.py
#
# What escapes the tree's code, as a value; what escapes ours stays an exception.
# ----------------------------------------------------------------------------

from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType

# An exception's text can hold whole tensors.
MESSAGE_CHARACTERS = 2_000


def tree_raised(error: BaseException) -> Raised:
    """An exception of the tree, at the innermost of its functions.

    A cause that was wrapped on the way out, as Triton's interpreter does, is the
    exception that counts.

    Raises:
        BaseException: The error itself, when no function of the tree was active, or
            one of ours that the tree had called: the fault is the harness's own.
    """
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    site, ours = "", False
    for frame in _frames(error, inner):
        # An edited function keeps its module's globals, and so its name.
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root == "vllm":
            site = frame.f_code.co_qualname
        # The memory checker runs below the tree; Triton, which it calls, is judged.
        ours = root == "invariants"
    if not site or ours:
        raise error
    message = str(inner)[:MESSAGE_CHARACTERS]
    return Raised(type=type(inner).__name__, message=message, site=site)


def _frames(*errors: BaseException) -> Iterator[FrameType]:
    for error in errors:
        for frame, _ in walk_tb(error.__traceback__):
            yield frame

# ----------------------------------------------------------------------------
# fuzz/targets/_hybrid_config.py
#
# A vLLM configuration and the layers of a hybrid model and its drafter, case by case.
#
# Real: `VllmConfig` and its checks, the attention and gated-delta-rule layer classes with
# their state shapes and dtypes. Stand-ins: the model folder (a small `config.json` whose
# numbers are replaced per case), the choice of attention backend (Triton's, as on CUDA
# without flash-attention) and the constructor of the gated-delta-rule layer.
# ----------------------------------------------------------------------------

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args
from unittest import mock

# Sizes here do not matter: every one that pages depend on is set per case.
MODEL_CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 65536,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "torch_dtype": "bfloat16",
}
STATE_LAYERS = (
    ("vllm.model_executor.layers.mamba.gdn_linear_attn", "GatedDeltaNetAttention"),
    (
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn",
        "QwenGatedDeltaNetAttention",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One configuration of this process, and what its parts held when it was made."""

    vllm_config: Any
    pristine: tuple[tuple[Any, dict[str, Any]], ...]


@lru_cache(maxsize=1)
def engine() -> Engine:
    """Build the configuration; seconds, once per process."""
    from vllm import config
    from vllm.model_executor.models import registry

    # vLLM inspects a model class in a process of its own, which takes as long as all
    # imports together; the same inspection in this process gives the same answer.
    with (
        tempfile.TemporaryDirectory(prefix="kvfuzz-model-") as folder,
        mock.patch.object(registry, "_run_in_subprocess", lambda inspect: inspect()),
    ):
        text = json.dumps(MODEL_CONFIG)
        (Path(folder) / "config.json").write_text(text, encoding="utf-8")
        model = config.ModelConfig(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=4096,
            enforce_eager=True,
        )
        vllm_config = config.VllmConfig(
            model_config=model,
            cache_config=config.CacheConfig(mamba_cache_mode="align"),
            scheduler_config=config.SchedulerConfig(
                max_model_len=4096,
                max_num_seqs=8,
                max_num_batched_tokens=4096,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
            ),
            speculative_config=config.SpeculativeConfig(
                method="ngram", num_speculative_tokens=1, prompt_lookup_max=2
            ),
            device_config=config.DeviceConfig(device="cpu"),
            load_config=config.LoadConfig(load_format="dummy"),
        )
    _register_specs(vllm_config)
    parts = (
        vllm_config,
        vllm_config.model_config,
        vllm_config.model_config.hf_config,
        vllm_config.model_config.hf_text_config,
        vllm_config.cache_config,
        vllm_config.parallel_config,
        vllm_config.scheduler_config,
        vllm_config.speculative_config,
    )
    return Engine(
        vllm_config=vllm_config,
        pristine=tuple((part, dict(vars(part))) for part in parts),
    )


def _register_specs(vllm_config: Any) -> None:
    """What the engine core does before it asks for specs, from 0.26 on."""
    managers = import_module("vllm.v1.core.single_type_kv_cache_manager")
    register = getattr(managers, "register_all_kvcache_specs", None)
    if register is not None:
        register(vllm_config)


@contextmanager
def configured(case: HybridConfig) -> Iterator[Any]:
    """The process's configuration with a case's numbers in it, and its layers built."""
    built = engine()
    vllm_config = built.vllm_config
    for part, values in built.pristine:
        vars(part).clear()
        vars(part).update(values)
    layers = vllm_config.compilation_config.static_forward_context
    layers.clear()
    try:
        _set_model(vllm_config, case.target)
        _set_deployment(vllm_config, case)
        vllm_config.model_config.config_updated = False
        vllm_config.try_verify_and_update_config()
        _build_layers(vllm_config, case)
        yield vllm_config
    finally:
        layers.clear()


def _set_model(vllm_config: Any, target: TargetModel) -> None:
    import torch

    model = vllm_config.model_config
    model.dtype = getattr(torch, target.dtype)
    model.model_arch_config = replace(
        model.model_arch_config,
        head_size=target.head_size,
        total_num_kv_heads=target.num_kv_heads,
        total_num_hidden_layers=len(target.layers),
    )
    # A model all of whose layers are called so is not hybrid (`ModelConfig.is_hybrid`).
    names = {"mamba": "linear_attention"}
    hybrid = "mamba" in target.layers
    for config in (model.hf_config, model.hf_text_config):
        config.layer_types = [
            names.get(kind, "full_attention" if hybrid else "attention")
            for kind in target.layers
        ]
        config.linear_num_value_heads = target.state_heads
        config.linear_num_key_heads = target.state_key_heads
        config.linear_value_head_dim = target.state_head_size
        config.linear_key_head_dim = target.state_size
        config.linear_conv_kernel_dim = target.conv_kernel


def _set_deployment(vllm_config: Any, case: HybridConfig) -> None:
    target, served = case.target, case.deployment
    model, cache = vllm_config.model_config, vllm_config.cache_config
    model.max_model_len = served.max_model_len
    model.original_max_model_len = served.max_model_len
    cache.cache_dtype = target.cache_dtype
    cache.mamba_ssm_cache_dtype = target.state_dtype
    # The deployment's, before the platform changed it for itself.
    cache.block_size = served.block_size or cache.DEFAULT_BLOCK_SIZE
    cache.user_specified_block_size = served.block_size is not None
    cache.mamba_block_size = None
    cache.mamba_page_size_padded = None
    cache.enable_prefix_caching = served.mamba_cache_mode != "none"
    modes = get_args(import_module("vllm.config.cache").MambaCacheMode)
    known = served.mamba_cache_mode in modes
    cache.mamba_cache_mode = served.mamba_cache_mode if known else "align"
    skipped = [] if served.skip_layer is None else [str(served.skip_layer)]
    if served.skip_sliding_window:
        skipped.append("sliding_window")
    cache.kv_cache_dtype_skip_layers = skipped
    vllm_config.parallel_config.tensor_parallel_size = served.tensor_parallel
    scheduler = vllm_config.scheduler_config
    scheduler.max_model_len = served.max_model_len
    scheduler.max_num_batched_tokens = served.max_num_batched_tokens
    scheduler.disable_hybrid_kv_cache_manager = not served.hybrid_manager
    if served.num_speculative_tokens:
        drafts = vllm_config.speculative_config
        drafts.num_speculative_tokens = served.num_speculative_tokens
    else:
        vllm_config.speculative_config = None


def _build_layers(vllm_config: Any, case: HybridConfig) -> None:
    """Construct the layers, which register themselves in the configuration."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention import attention

    target, drafter = case.target, case.drafter
    cache = vllm_config.cache_config
    layers = vllm_config.compilation_config.static_forward_context
    with (
        set_current_vllm_config(vllm_config),
        mock.patch.object(attention, "get_attn_backend", _backend),
    ):
        for number, kind in enumerate(target.layers):
            if kind == "mamba":
                name = f"model.layers.{number}.linear_attn"
                layers[name] = _state_layer(vllm_config)
            else:
                _attention_layer(case, target, number, kind, cache)
        if drafter is None:
            return
        # A drafter's cache follows the target's unless it is told its own dtype, an
        # option that 0.20.1 does not have (`config/speculative.py`).
        if drafter.cache_dtype != "target" and hasattr(
            vllm_config.speculative_config, "kv_cache_dtype"
        ):
            cache = copy(cache)
            cache.cache_dtype = drafter.cache_dtype
        # Its layers are numbered on from the target's (`models/qwen3_dflash.py`).
        for number, kind in enumerate(drafter.layers, start=len(target.layers)):
            layer = _attention_layer(case, drafter, number, kind, cache)
            layer.is_draft_layer = True


def _attention_layer(
    case: HybridConfig,
    model: TargetModel | Drafter,
    number: int,
    kind: LayerKind,
    cache: Any,
) -> Any:
    from vllm.model_executor.layers.attention import Attention

    heads = max(1, model.num_kv_heads // case.deployment.tensor_parallel)
    return Attention(
        num_heads=heads,
        head_size=model.head_size,
        scale=1.0,
        num_kv_heads=heads,
        cache_config=cache,
        per_layer_sliding_window=model.window if kind == "sliding_window" else None,
        prefix=f"model.layers.{number}.self_attn.attn",
    )


def _state_layer(vllm_config: Any) -> Any:
    """A gated-delta-rule layer with what its constructor takes from the config."""
    kind = _state_layer_class()
    layer = kind.__new__(kind)
    config = vllm_config.model_config.hf_text_config
    speculative = vllm_config.speculative_config
    vars(layer).update(
        tp_size=vllm_config.parallel_config.tensor_parallel_size,
        num_k_heads=config.linear_num_key_heads,
        num_v_heads=config.linear_num_value_heads,
        head_k_dim=config.linear_key_head_dim,
        head_v_dim=config.linear_value_head_dim,
        conv_kernel_size=config.linear_conv_kernel_dim,
        num_spec=speculative.num_speculative_tokens if speculative else 0,
        vllm_config=vllm_config,
        model_config=vllm_config.model_config,
        cache_config=vllm_config.cache_config,
        # No kernel here exports states in the middle of a prefill.
        _checkpoint_alignment=None,
    )
    return layer


@lru_cache(maxsize=1)
def _state_layer_class() -> Any:
    for module, name in STATE_LAYERS:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
    raise LookupError(
        "this tree has no gated-delta-rule layer in "
        f"{' or '.join(module for module, _ in STATE_LAYERS)}"
    )


def _backend(*_args: Any, **_options: Any) -> Any:
    """The attention backend of every layer."""
    module = import_module("vllm.v1.attention.backends.triton_attn")
    return module.TritonAttentionBackend

# ----------------------------------------------------------------------------
# fuzz/targets/_kv_cache_specs.py
#
# Between KV-cache specs as plain values and the tree's own spec objects.
#
# vLLM keeps its spec classes in `v1/kv_cache_interface.py` in every release; what they
# call packed and padded content differs, and those differences end here.
# ----------------------------------------------------------------------------

import ast
import dataclasses
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PLANNING_MODULES = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
UNIFY_FUNCTION = "unify_kv_cache_spec_page_size"
# Fields on which no page depends, told to every spec whose class has them: a spec that
# is made anew without them shows.
TOLD = {
    "extra_retained_tokens": 3,
    "is_draft": True,
    "max_tp_shards": 2,
    "non_causal": True,
    "num_prefill_checkpoint_blocks": 1,
    "topk_buffer_width": 8,
}
PADDABLE_ATTENTION: tuple[Kind, ...] = ("full", "sliding_window", "chunked_local")


@lru_cache(maxsize=1)
def planning_module() -> ModuleType | None:
    """The module that unifies and plans pages; None when the tree has neither."""
    for name in PLANNING_MODULES:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue
        if hasattr(module, UNIFY_FUNCTION):
            return module
    return None


@lru_cache(maxsize=2)
def padded_kinds(*, opted_in: bool) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """Kinds that may be padded by unifying, and kinds that are promised to be.

    Read from the function's documentation in the tree's file: 0.20.1 promises to scale
    blocks only, and its views read a padded Mamba page but no padded attention page
    (`v1/worker/gpu_model_runner.py`, `_reshape_kv_cache_tensors`); from 0.24 on padded
    attention pages are read through a strided view, MLA excepted.

    Args:
        opted_in: Whether specs say that their backend reads padded pages, which 0.26
            to 0.32 ask for.
    """
    module = planning_module()
    assert module is not None
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    text = next(
        ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == UNIFY_FUNCTION
    )
    pads_attention = "attention layers" in text and "pad" in text
    optional = "indexes_kv_by_block_stride" in text and not opted_in
    states: tuple[Kind, ...] = ("mamba",)
    attention = PADDABLE_ATTENTION if pads_attention else ()
    may = states + attention
    must = (states if "Mamba layers" in text else ()) + (() if optional else attention)
    return may, must


def made(spec: LayerSpec) -> Any:
    """The tree's spec object for a value.

    Raises:
        ValueError: A kind that this release has no class for.
    """
    import torch
    from vllm.v1 import kv_cache_interface as interface

    if spec.mamba is not None:
        return interface.MambaSpec(
            block_size=spec.block_size,
            shapes=spec.mamba.shapes,
            dtypes=tuple(getattr(torch, dtype) for dtype in spec.mamba.dtypes),
            page_size_padded=spec.page_size_padded,
            mamba_cache_mode=spec.mamba.cache_mode,
            num_speculative_blocks=spec.mamba.num_speculative_blocks,
            **_told(interface.MambaSpec),
        )
    shape = spec.attention
    assert shape is not None
    modes = interface.KVQuantMode
    scaled = (
        modes.INT8_PER_TOKEN_HEAD if shape.dtype == "int8" else modes.FP8_PER_TOKEN_HEAD
    )
    common = {
        "block_size": spec.block_size,
        "num_kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "dtype": getattr(torch, shape.dtype),
    }
    whole = modes.FP8_PER_TENSOR if common["dtype"].itemsize == 1 else modes.NONE
    common["kv_quant_mode"] = whole if shape.scales == "none" else scaled
    if spec.kind == "mla":
        mla = interface.MLAAttentionSpec
        return mla(**common, **_told(mla), alignment=shape.alignment)
    common["page_size_padded"] = spec.page_size_padded
    if spec.kind == "chunked_local":
        kind = interface.ChunkedLocalAttentionSpec
        common["attention_chunk_size"] = shape.window
    elif spec.kind == "sliding_window":
        kind = interface.SlidingWindowSpec
        common |= {"sliding_window": shape.window, "head_size_v": shape.head_size_v}
    else:
        kind = interface.FullAttentionSpec
        common["head_size_v"] = shape.head_size_v
    fields = kind.__dataclass_fields__
    if "indexes_kv_by_block_stride" in fields:
        common["indexes_kv_by_block_stride"] = True
    if shape.scales != "none" and "state_content_bytes" in fields:
        # Since 0.26 the backend tells a spec what scales cost; the content is the same.
        size = shape.head_size + shape.head_size_v
        common["state_content_bytes"] = size * common["dtype"].itemsize + 8
    return kind(**common, **_told(kind))


def _told(kind: Any) -> dict[str, Any]:
    return {name: TOLD[name] for name in TOLD if name in kind.__dataclass_fields__}


def seen(name: str, spec: Any) -> SeenLayer:
    """The value of a tree's spec object, with the page size that it says itself.

    Raises:
        AssertionError: The object says it is padded to less than it holds.
        ValueError: An object of a class that is not modelled.
    """
    return SeenLayer(
        name=name,
        page_bytes=spec.page_size_bytes,
        spec=_value(spec),
        fields=tuple(
            (field.name, str(getattr(spec, field.name)))
            for field in dataclasses.fields(spec)
            if field.name not in ("block_size", "page_size_padded")
        ),
    )


def kind_of(spec: Any) -> Kind:
    """The kind of a tree's spec object.

    Raises:
        ValueError: An object of a class that is not modelled.
    """
    from vllm.v1 import kv_cache_interface as interface

    kinds: tuple[tuple[Any, Kind], ...] = (
        # A subclass before its base.
        (interface.MLAAttentionSpec, "mla"),
        (interface.FullAttentionSpec, "full"),
        (interface.SlidingWindowSpec, "sliding_window"),
        (interface.ChunkedLocalAttentionSpec, "chunked_local"),
        (interface.MambaSpec, "mamba"),
    )
    for known, kind in kinds:
        if isinstance(spec, known):
            return kind
    raise ValueError(
        f"a spec of class {type(spec).__name__} is not modelled; known: "
        f"{', '.join(known.__name__ for known, _ in kinds)}"
    )


def _value(spec: Any) -> LayerSpec:
    kind = kind_of(spec)
    if kind == "mamba":
        return LayerSpec(
            kind=kind,
            block_size=spec.block_size,
            mamba=MambaState(
                shapes=tuple(tuple(shape) for shape in spec.shapes),
                dtypes=tuple(_dtype_name(dtype) for dtype in spec.dtypes),
                cache_mode=spec.mamba_cache_mode,
                num_speculative_blocks=spec.num_speculative_blocks,
            ),
            page_size_padded=spec.page_size_padded,
        )
    window = getattr(spec, "sliding_window", None)
    if kind == "chunked_local":
        window = spec.attention_chunk_size
    packed = getattr(spec, "state_content_bytes", None)
    packed = packed or getattr(spec, "tq_slot_size", 0) or None
    head_size_v = getattr(spec, "head_size_v", None)
    if kind == "mla":
        head_size_v = 0
    elif head_size_v is None:
        head_size_v = spec.head_size
    return LayerSpec(
        kind=kind,
        block_size=spec.block_size,
        attention=AttentionShape(
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            head_size_v=head_size_v,
            dtype=_dtype_name(spec.dtype),
            scales="per_token_head" if spec.kv_quant_mode.is_per_token_head else "none",
            window=window,
            alignment=getattr(spec, "alignment", None),
            slot_bytes=packed,
        ),
        page_size_padded=spec.page_size_padded,
    )


def _dtype_name(dtype: Any) -> Any:
    return str(dtype).removeprefix("torch.")

# ----------------------------------------------------------------------------
# fuzz/targets/_hybrid_plan.py
#
# From a configuration to the plan of its KV caches, through the tree's own code.
#
# The stages are those of an engine's start: block-size alignment as CUDA runs it
# (`Platform.update_block_size_for_backend`; the CPU platform has its own), specs from the
# layers as model runner V2 collects them, grouping, and the workers' configurations.
# The memory that profiling would find is computed from the case instead.
# ----------------------------------------------------------------------------

import inspect
from importlib import import_module
from itertools import pairwise
from typing import Any

Groups = tuple[tuple[SeenLayer, ...], ...]
# What one of two pipeline stages has more than the other.
RICHER_BLOCKS = 5


class _Progress:
    """What one run has seen so far; `stage` is the stage that is running."""

    def __init__(self) -> None:
        self.stage: Stage = "align"
        self.layers: tuple[SeenLayer, ...] = ()
        self.groups: Groups = ()
        self.stages: tuple[tuple[str, ...], ...] = ()
        self.memory_bytes: tuple[int, ...] = ()
        self.workers: tuple[Worker, ...] = ()


def planned(case: HybridConfig) -> Plan:
    """Plan a configuration's KV caches; what escapes the tree's code is part of it."""
    progress, raised = _Progress(), None
    with configured(case) as vllm_config:
        try:
            _advance(progress, case, vllm_config)
        except Exception as error:  # noqa: BLE001 - observed, if it is the tree's
            raised = tree_raised(error)
    return Plan(
        stage=progress.stage,
        raised=raised,
        layers=progress.layers,
        groups=progress.groups,
        stages=progress.stages,
        memory_bytes=progress.memory_bytes,
        workers=progress.workers,
    )


def _advance(progress: _Progress, case: HybridConfig, vllm_config: Any) -> None:
    platform = import_module("vllm.platforms.interface").Platform
    platform.update_block_size_for_backend(vllm_config)
    vllm_config.validate_block_size()

    progress.stage = "specs"
    runner = import_module("vllm.v1.worker.gpu.attn_utils")
    specs = runner.get_kv_cache_spec(vllm_config)
    progress.layers = tuple(seen(name, spec) for name, spec in specs.items())
    stages = _stages(specs, case)
    progress.stages = tuple(tuple(stage) for stage in stages)

    progress.stage = "groups"
    groups = _groups(vllm_config, stages, case.deployment)
    progress.groups = tuple(_group_layers(group) for group in groups)

    progress.stage = "configs"
    progress.memory_bytes = _budget(progress, case.deployment)
    planning = planning_module()
    assert planning is not None
    arguments = [vllm_config, stages, list(progress.memory_bytes)]
    if _takes_groups(planning.get_kv_cache_configs):
        arguments.append(groups)
    configs = planning.get_kv_cache_configs(*arguments)
    # The groups that count are those that the workers allocate.
    progress.groups = _allocated_groups(configs)
    progress.workers = tuple(
        Worker(
            layers=names,
            memory_bytes=memory,
            num_blocks=config.num_blocks,
            places=_places(config),
        )
        for config, names, memory in zip(
            configs, progress.stages, progress.memory_bytes, strict=True
        )
    )
    progress.stage = "done"


def _stages(specs: dict[str, Any], case: HybridConfig) -> list[dict[str, Any]]:
    """Layers split evenly over pipeline stages; the drafter is on the last."""
    names = list(specs)
    count = case.deployment.pipeline_stages
    cuts = [len(names) * stage // count for stage in range(count + 1)]
    if case.drafter is not None:
        cuts[1:-1] = [min(cut, len(case.target.layers)) for cut in cuts[1:-1]]
    return [
        {name: specs[name] for name in names[start:end]}
        for start, end in pairwise(cuts)
    ]


def _takes_groups(configure: Any) -> bool:
    """Since 0.33 the caller groups first and hands the groups over."""
    return "global_kv_cache_groups" in inspect.signature(configure).parameters


def _groups(vllm_config: Any, stages: list[dict[str, Any]], served: Deployment) -> Any:
    planning = planning_module()
    assert planning is not None
    layout = import_module("vllm.v1.attention.backends.utils")
    if hasattr(layout, "resolve_kv_cache_layout"):
        _resolve_layout(layout, vllm_config, stages, served)
    if hasattr(planning, "get_global_kv_cache_groups"):
        return planning.get_global_kv_cache_groups(vllm_config, stages)
    merged = {name: spec for stage in stages for name, spec in stage.items()}
    return planning.get_kv_cache_groups(vllm_config, merged)


def _resolve_layout(
    layout: Any, vllm_config: Any, stages: list[dict[str, Any]], served: Deployment
) -> None:
    """Choose the pages' physical layout as the engine core does, from 0.30 on."""
    layers = vllm_config.compilation_config.static_forward_context.values()
    backends = {layer.get_attn_backend() for layer in layers}
    supported = layout.get_supported_kv_cache_layouts(sorted(backends, key=str))
    outermost = [each for each in supported if each.is_block_outermost]
    if served.block_outermost and outermost:
        supported = outermost
    layout.resolve_kv_cache_layout(
        vllm_config,
        [[each.name for each in supported]] * len(stages),
        [spec for stage in stages for spec in stage.values()],
    )


def _group_layers(group: Any) -> tuple[SeenLayer, ...]:
    """A group's layers with their own specs, or with the one that all share."""
    own = getattr(group.kv_cache_spec, "kv_cache_specs", {})
    return tuple(
        seen(name, own.get(name, group.kv_cache_spec)) for name in group.layer_names
    )


def _allocated_groups(configs: list[Any]) -> Groups:
    """The same groups as all workers see them together."""
    by_worker = [config.kv_cache_groups for config in configs]
    return tuple(
        tuple(layer for group in parts for layer in _group_layers(group))
        for parts in zip(*by_worker, strict=True)
    )


def _budget(progress: _Progress, served: Deployment) -> tuple[int, ...]:
    """Bytes for each worker: one request's blocks, more or fewer, and some bytes.

    Of two stages one has more blocks, the first or the last by turns, for all workers
    must plan with what the poorest has.
    """
    blocks = blocks_needed(progress.groups, served, at_most=False)
    blocks += served.spare_blocks
    richer = served.spare_blocks % 2 if len(progress.stages) > 1 else None
    return tuple(
        max(
            0,
            (blocks + (RICHER_BLOCKS if stage == richer else 0))
            * bytes_per_block(progress.groups, names)
            + served.spare_bytes,
        )
        for stage, names in enumerate(progress.stages)
    )


def _places(config: Any) -> tuple[Place, ...]:
    """Where layers' pages lie, from tensors of either form.

    Up to 0.28 a tensor is an allocation that some layers share, or with a block stride
    a slot of each block of the one allocation; from 0.30 on it is a run of layers in
    the one allocation.
    """
    pages = {
        layer.name: layer.page_bytes
        for group in config.kv_cache_groups
        for layer in _group_layers(group)
    }
    places = []
    for number, tensor in enumerate(config.kv_cache_tensors):
        if hasattr(tensor, "layers"):
            spots = [
                (name, 0, tensor.offset + rank * tensor.layer_stride)
                for rank, name in enumerate(tensor.layers)
            ]
        elif getattr(tensor, "block_stride", 0):
            spots = [(name, 0, tensor.offset) for name in tensor.shared_by]
        else:
            spots = [(name, number, 0) for name in tensor.shared_by]
        places += [
            Place(
                layer=name,
                allocation=allocation,
                allocation_bytes=tensor.size,
                offset=offset,
                stride=getattr(tensor, "block_stride", 0) or pages[name],
            )
            for name, allocation, offset in spots
        ]
    return tuple(places)

# ----------------------------------------------------------------------------
# fuzz/targets/page_size.py
#
# Runs page-size unification and the planning of KV caches on a case.
#
# Contract cases call `unify_kv_cache_spec_page_size` on specs made as the case says;
# wired ones go through `_hybrid_plan`. Planning moved from `v1/core/kv_cache_utils.py`
# (up to 0.32) to `v1/core/kv_cache_planning.py`.
# ----------------------------------------------------------------------------

from typing import Any

def absent() -> str | None:
    """Why this tree has no page-size unification, None when it has."""
    if planning_module() is None:
        return f"no function {UNIFY_FUNCTION} in {' or '.join(PLANNING_MODULES)}"
    return None


def run(case: Case) -> Observation:
    """Run the tree's code on a case and observe what it did."""
    may_pad, must_pad = padded_kinds(opted_in=case.config is None)
    if case.config is None:
        calls = _unify_calls(case.layers)
        return Observation(may_pad=may_pad, must_pad=must_pad, unify=calls)
    plan = planned(case.config)
    return Observation(may_pad=may_pad, must_pad=must_pad, plan=plan)


def _unify_calls(layers: tuple[LayerSpec, ...]) -> UnifyCalls:
    specs = {f"layer.{number}": made(spec) for number, spec in enumerate(layers)}
    # Objects of its own: a function that changes its input must not spoil the other.
    opposite = {f"layer.{n}": made(layers[n]) for n in reversed(range(len(layers)))}
    given = _layers(specs)
    result, first = _unified(specs)
    return UnifyCalls(
        given=given,
        kept=_layers(specs),
        first=first,
        again=None if result is None else _unified(dict(result))[1],
        reordered=_unified(opposite)[1],
    )


def _unified(specs: dict[str, Any]) -> tuple[dict[str, Any] | None, Unified]:
    try:
        result = getattr(planning_module(), UNIFY_FUNCTION)(specs)
        layers = _layers(result)
    except NotImplementedError as refusal:
        # An answer, and so it is from a function of ours in the tree's place.
        name = type(refusal).__name__
        return None, Unified(
            raised=Raised(type=name, message=str(refusal), site=UNIFY_FUNCTION)
        )
    except Exception as error:  # noqa: BLE001 - whatever escapes is what was observed
        return None, Unified(raised=tree_raised(error))
    return result, Unified(raised=None, layers=layers)


def _layers(specs: dict[str, Any]) -> tuple[SeenLayer, ...]:
    return tuple(seen(name, spec) for name, spec in specs.items())

# ----------------------------------------------------------------------------
# reproducers/fixes/page_size.py
#
# Fixed implementations for page sizes: unification anew, planning by small edits.
#
# Unification scales blocks where that is exact, pads what the release can read through a
# padded stride, and refuses the rest in the documented way.
# ----------------------------------------------------------------------------

from dataclasses import replace
from typing import Any

def one_page_size(kv_cache_spec: dict[str, Any]) -> dict[str, Any]:
    """Bring all layers to the largest page.

    A layer whose pages divide the largest gets more tokens per block. A Mamba layer is
    padded. An attention layer that the release reads through a padded stride gets twice
    the tokens as long as they fit, so that half a page at most is left empty, and is
    padded; one that was padded before keeps its share of padding elsewhere.

    Args:
        kv_cache_spec: The tree's spec objects by layer name.

    Returns:
        New specs in the same order; the input is not changed.

    Raises:
        NotImplementedError: When a layer can be neither scaled nor padded.
    """
    largest = max((spec.page_size_bytes for spec in kv_cache_spec.values()), default=0)
    return {
        name: spec if spec.page_size_bytes == largest else _grown(name, spec, largest)
        for name, spec in kv_cache_spec.items()
    }


def _grown(name: str, spec: Any, largest: int) -> Any:
    kind = kind_of(spec)
    if kind == "mamba":
        return replace(spec, page_size_padded=largest)
    times, rest = divmod(largest, spec.page_size_bytes)
    if rest == 0:
        # MLA's own alignment is computed anew for the larger block.
        scaled = replace(
            spec, block_size=spec.block_size * times, page_size_padded=None
        )
        if scaled.page_size_bytes == largest:
            return scaled
    # Releases from 0.26 to 0.32 ask each spec whether its backend reads such pages.
    opted_in = getattr(spec, "indexes_kv_by_block_stride", True)
    may_pad, _ = padded_kinds(opted_in=True)
    if kind in may_pad and opted_in:
        return _filled(replace(spec, page_size_padded=None), largest)
    if rest == 0 and kind != "mla":
        return replace(
            spec, block_size=spec.block_size * times, page_size_padded=largest
        )
    raise NotImplementedError(
        f"{name}: pages of {spec.page_size_bytes} bytes do not divide {largest}, and "
        f"{kind} layers cannot be padded"
    )


def _filled(bare: Any, largest: int) -> Any:
    """A padded page with as many tokens as doubling the block fits into it."""
    # A backend that splits blocks into kernel blocks of fixed sizes cannot split padded
    # ones (`MultipleOf` in 0.33.0), so its blocks stay within one kernel block.
    limit = getattr(getattr(bare, "block_stride_alignment", None), "base", largest)
    block_size, content = bare.block_size, bare.page_size_bytes
    while 2 * content <= largest and 2 * block_size <= limit:
        block_size, content = 2 * block_size, 2 * content
    return replace(bare, block_size=block_size, page_size_padded=largest)


_UNIFY = Replacement(
    modules=PLANNING_MODULES,
    function=UNIFY_FUNCTION,
    implementation="reproducers.fixes.page_size:one_page_size",
)
# Skipped layers share a page that was measured on the target's heads; a drafter's
# sliding-window layer may hold more.
_SHARED_PAGE = SourceEdit(
    modules=("vllm.model_executor.layers.attention.attention",),
    function="Attention.get_kv_cache_spec",
    old="page_size_padded=shared_page,",
    new=(
        "page_size_padded=shared_page "
        "if sw_block_size * sw_per_token <= (shared_page or 0) else None,"
    ),
)
# A layer that becomes full attention keeps how it is stored.
_PROMOTED = SourceEdit(
    modules=PLANNING_MODULES,
    function="unify_hybrid_kv_cache_specs",
    old="sliding_window=spec.sliding_window,",
    new=(
        "sliding_window=spec.sliding_window, head_size_v=spec.head_size_v, "
        "kv_quant_mode=spec.kv_quant_mode,"
    ),
)
_FOREIGN_LAYERS = SourceEdit(
    modules=PLANNING_MODULES,
    function="get_kv_cache_config_from_groups",
    old="in group_spec.kv_cache_specs.items():",
    new=(
        "in [(n, s) for n, s in group_spec.kv_cache_specs.items() "
        "if n in group.layer_names]:"
    ),
)


# One block's pages in the group that has most of them: what the null block costs.
_NULL_BLOCK = SourceEdit(
    modules=PLANNING_MODULES,
    function="get_kv_cache_configs",
    old="_check_enough_kv_cache_memory(\n            avail_mem,",
    new="""_check_enough_kv_cache_memory(
            avail_mem
            - max(
                sum(
                    getattr(g.kv_cache_spec, "kv_cache_specs", {})
                    .get(name, g.kv_cache_spec)
                    .page_size_bytes
                    for name in g.layer_names
                )
                for g in groups
            ),""",
)
# Pages of two sizes that do not come in equal numbers are no repeating pattern, and a
# split by the pattern loses layers or leaves groups empty.
_WHOLE_BUCKETS = SourceEdit(
    modules=PLANNING_MODULES,
    function="_get_packed_kv_cache_groups",
    old="if anchor_bytes and is_state_bucket(spec):",
    new="if anchor_bytes and balanced and is_state_bucket(spec):",
)

_SPEC_SITES = (*PADDING_SITES, PADDED_ATTENTION)

FIXES: tuple[Fix, ...] = (
    Fix(
        name="scales and pads pages; skipped layers share a page where they fit",
        sites=_SPEC_SITES,
        edits=(_UNIFY, _SHARED_PAGE),
    ),
    Fix(name="scales blocks and pads pages", sites=_SPEC_SITES, edits=(_UNIFY,)),
    Fix(
        name="scales and pads pages; promoted layers keep their storage",
        sites=("get_kv_cache_groups",),
        edits=(_UNIFY, _PROMOTED),
    ),
    Fix(
        name="scales blocks and pads pages",
        sites=("get_kv_cache_groups",),
        edits=(_UNIFY,),
    ),
    Fix(
        name="splits only buckets that are a repeating pattern",
        sites=("UniformTypeKVCacheSpecs.is_uniform_type", "_check_exact_partition"),
        edits=(_WHOLE_BUCKETS,),
    ),
    Fix(
        name="places a worker's own layers only",
        sites=("get_kv_cache_configs",),
        edits=(_FOREIGN_LAYERS,),
    ),
    Fix(
        name="keeps the null block out of what requests may use",
        sites=("get_kv_cache_configs",),
        edits=(_NULL_BLOCK,),
    ),
)

# ----------------------------------------------------------------------------
# One arm, in a child process.
# ----------------------------------------------------------------------------

if __name__ == "__main__":
    run_arm(
        CLAIM, sys.argv[1:], run=run, absent=absent, fixes=FIXES, home=__name__
    )
