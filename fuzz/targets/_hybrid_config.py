"""A vLLM configuration and the layers of a hybrid model and its drafter, case by case.

Real: `VllmConfig` and its checks, the attention and gated-delta-rule layer classes with
their state shapes and dtypes. Stand-ins: the model folder (a small `config.json` whose
numbers are replaced per case), the choice of attention backend (Triton's, as on CUDA
without flash-attention) and the constructor of the gated-delta-rule layer.
"""

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

from invariants.hybrid_config import Drafter, HybridConfig, LayerKind, TargetModel

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
