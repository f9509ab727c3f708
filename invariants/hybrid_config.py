"""A hybrid model, its drafter and how they are served: configuration only, as values.

From these the target builds layers, block sizes and specs with the tree's own code.
"""

from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

import msgspec

from invariants.page_layers import Fault
from invariants.specs import (
    DTYPE_BYTES,
    SCALE_BYTES,
    CacheMode,
    Extent,
    LayerSpec,
    MambaState,
    SeenLayer,
    content_bytes,
)

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
