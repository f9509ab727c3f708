"""Wired launches of attention: tensors as a release makes them, by its own code.

The pool is viewed by the release's cache-view code, scratch and metadata come from its
builder, and `TritonAttentionImpl.forward` says what it would launch with. What differs
between releases lies here.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzz.targets._paged_cache import (
    KEY_DEQUANT,
    VALUE_DEQUANT,
    softmax_scale,
    stored_dtype,
)
from fuzz.targets._sparse_pool import SparsePool, sparse_pool
from fuzz.targets._verify_batch import Batch
from invariants.verify_case import Case, Geometry, geometry


class NotInThisReleaseError(Exception):
    """A wired configuration that the release never makes; says which."""


class NoFill(TorchFunctionMode):
    """The tree fills whole scale caches with ones; a sparse pool cannot be touched."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.fill_:
            return args[0]
        return func(*args, **(kwargs or {}))


class NoAllocation(TorchFunctionMode):
    """The tree makes tensors as large as a pool, only to ask for their strides."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.empty:
            return func(*args, **{**(kwargs or {}), "device": "meta"})
        return func(*args, **(kwargs or {}))


@contextmanager
def wired_arguments(
    case: Case, batch: Batch
) -> Iterator[tuple[SparsePool, dict[str, Any]]]:
    """The arguments of `unified_attention` that the release's backend would pass.

    Raises:
        NotInThisReleaseError: When the release never makes such a pool.
    """
    from vllm.v1.attention.backends import triton_attn

    spec = wired_spec(case)
    size = spec.page_size_bytes * case.layout.pool_blocks * case.layers
    fp8 = case.cache == "fp8"
    layer = SimpleNamespace(
        _q_scale=torch.tensor(1.0),
        _q_scale_float=1.0,
        _k_scale=torch.tensor(KEY_DEQUANT if fp8 else 1.0),
        _v_scale=torch.tensor(VALUE_DEQUANT if fp8 else 1.0),
    )
    implementation = triton_attn.TritonAttentionImpl(
        num_heads=case.shape.heads,
        head_size=case.shape.head_size,
        scale=softmax_scale(case),
        num_kv_heads=case.shape.kv_heads,
        alibi_slopes=None,
        sliding_window=case.window or None,
        kv_cache_dtype=case.cache,
        sinks=batch.sinks,
    )
    launched: list[dict[str, Any]] = []
    real = triton_attn.unified_attention
    with sparse_pool(max(size, documented_geometry(case).size_bytes)) as pool:
        kv_cache = wired_view(case, spec, pool.bytes[:size].view(torch.int8))
        metadata = _wired_metadata(case, spec, batch)
        unused = torch.empty(0)
        triton_attn.unified_attention = lambda **arguments: launched.append(arguments)
        try:
            with NoFill():
                implementation.forward(
                    layer, batch.query, unused, unused, kv_cache, metadata, batch.out
                )
        finally:
            triton_attn.unified_attention = real
        (arguments,) = launched
        yield pool, arguments


def documented_geometry(case: Case) -> Geometry:
    """Where a wired pool's contents lie, from what its release says and not its code.

    Blocks have all keys before their values up to 0.20.1 (the backend's shape has an
    axis of two), from 0.28 on each head's key and value lie together ("packed into the
    content dim"). Scales follow the head's data, padding the page; layers of a block
    lie side by side.
    """
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    shape = getattr(TritonAttentionBackend, "get_kv_cache_shape", None)
    apart = shape is not None and len(shape(1, 16, 1, 32)) == len("B2NHC")
    size = stored_dtype(case).itemsize
    return geometry(
        replace(
            case,
            origin="contract",
            page="halves" if apart else "interleaved",
            padding=case.padding // size,
        )
    )


def wired_spec(case: Case) -> Any:
    """The layer's spec as the release makes it, padded as its page unifier pads."""
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

    dtype = (
        getattr(torch, case.dtype)
        if case.cache == "auto"
        else STR_DTYPE_TO_TORCH_DTYPE[case.cache]
    )
    spec = FullAttentionSpec(
        block_size=case.block_size,
        num_kv_heads=case.shape.kv_heads,
        head_size=case.shape.head_size,
        dtype=dtype,
        kv_quant_mode=get_kv_quant_mode(case.cache),
    )
    customize = getattr(TritonAttentionBackend, "customize_spec", None)
    if customize is not None:
        spec = customize(spec)
    if case.padding:
        spec = replace(spec, page_size_padded=spec.page_size_bytes + case.padding)
    return spec


def wired_view(
    case: Case, spec: Any, raw: torch.Tensor, *, backend: Any = None
) -> torch.Tensor:
    """The layer's view of the raw pool, by the release's own code.

    Args:
        case: The pool's size and order.
        spec: Of the layer.
        raw: The pool's bytes.
        backend: The class that says what it supports; None for Triton attention.

    Raises:
        NotInThisReleaseError: When the release never makes such a pool.
    """
    from vllm.v1 import kv_cache_interface
    from vllm.v1.attention.backends import triton_attn
    from vllm.v1.worker.gpu import attn_utils

    if case.scaled and case.order == "heads" and _scales_by_token():
        raise NotInThisReleaseError("this release has scales token by token only")
    backend = backend or triton_attn.TritonAttentionBackend
    blocks = case.layout.pool_blocks
    if hasattr(kv_cache_interface, "create_kv_cache_views"):
        layout = _wired_layout(case, backend)
        layer_stride, block_stride, *_ = kv_cache_interface.compute_layout_strides(
            spec, blocks, case.layers, layout
        )
        placed = kv_cache_interface.KVCacheTensor(
            size=raw.numel(),
            layers=[f"layer.{number}" for number in range(case.layers)],
            layer_stride=layer_stride,
            block_stride=block_stride,
        )
        views = kv_cache_interface.create_kv_cache_views(
            raw, spec, blocks, layout, placed
        )
        last: torch.Tensor = views[-1]
        return last
    if case.layers > 1:
        raise NotInThisReleaseError("this release gives each layer a pool of its own")
    if case.order == "planes":
        raise NotInThisReleaseError("this release keeps a block's heads together")
    padded = hasattr(attn_utils, "_reshape_attention_kv_cache")
    if case.padding and not padded:
        raise NotInThisReleaseError("this release pads no attention page")
    return _reshaped(case, spec, raw, backend)


def _wired_layout(case: Case, backend: Any) -> Any:
    """The layout of `VLLM_KV_CACHE_LAYOUT`, if the release lets the backend have it."""
    from vllm.v1.attention.backends import utils
    from vllm.v1.kv_cache_interface import KVCacheLayout

    outer = "BL" if case.layers > 1 else "LB"
    name = {"tokens": f"{outer}NHC", "heads": f"{outer}HNC", "planes": "LHBNC"}
    layout = KVCacheLayout[name[case.order]]
    if layout not in utils.get_supported_kv_cache_layouts([backend]):
        raise NotInThisReleaseError(f"the backend does not support {layout.name}")
    if case.order == "planes" and (case.layers > 1 or case.padding):
        raise NotInThisReleaseError(
            f"{layout.name} neither packs layers nor pads pages"
        )
    return layout


def _reshaped(case: Case, spec: Any, raw: torch.Tensor, backend: Any) -> torch.Tensor:
    """Up to 0.32: `_reshape_kv_cache` of v1/worker/gpu/attn_utils.py."""
    from vllm.v1.attention.backends import utils
    from vllm.v1.worker.gpu import attn_utils

    reshape = attn_utils._reshape_kv_cache  # noqa: SLF001 - the release's own code
    utils.set_kv_cache_layout("HND" if case.order == "heads" else "NHD")
    try:
        with NoAllocation():
            if "attn_backends" in inspect.signature(reshape).parameters:
                group = SimpleNamespace(layer_names=["layer"], kv_cache_spec=spec)
                config = SimpleNamespace(kv_cache_groups=[group])
                made = reshape(config, {"layer": raw}, {"layer": backend}, case.cache)
            else:
                group = SimpleNamespace(
                    kv_cache_group_id=0,
                    kv_cache_spec=spec,
                    layer_names=["layer"],
                    backend=backend,
                )
                made = reshape(
                    [group], {"layer": raw}, case.cache, [case.block_size], {}
                )
    finally:
        utils.set_kv_cache_layout(None)
    view: torch.Tensor = made["layer"]
    return view


def _wired_metadata(case: Case, spec: Any, batch: Batch) -> Any:
    """Metadata and split-KV scratch by the release's builder, sized for this batch."""
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder

    shape, requests = case.shape, len(batch.used)
    model = SimpleNamespace(
        get_num_attention_heads=lambda _: shape.heads,
        get_num_kv_heads=lambda _: shape.kv_heads,
        get_head_size=lambda: shape.head_size,
        rswa_window=None,
    )
    config = SimpleNamespace(
        model_config=model,
        parallel_config=None,
        compilation_config=SimpleNamespace(
            cudagraph_mode=None, static_forward_context={}
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=max(case.query_lens) - 1, parallel_drafting=False
        ),
    )
    builder = TritonAttentionMetadataBuilder(
        spec, ["layer"], config, torch.device("cpu")
    )
    for scratch in ("output", "max", "expsum"):
        getattr(builder, f"softmax_segm_{scratch}").fill_(torch.nan)
    common = CommonAttentionMetadata(
        query_start_loc=batch.cu_query,
        query_start_loc_cpu=batch.cu_query,
        seq_lens=batch.used,
        num_reqs=requests,
        num_actual_tokens=len(batch.query),
        max_query_len=max(case.query_lens),
        max_seq_len=max(case.layout.num_tokens),
        block_table_tensor=batch.table,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        causal=True,
    )
    return builder.build(0, common)


def _scales_by_token() -> bool:
    """Whether the release views scales token by token whatever the layout.

    0.20.1 makes their strides from the cache's shape; heads first, a head's scale then
    lies behind another head's data, where the same view finds it again.
    """
    from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

    view = TritonAttentionImpl._ensure_scale_caches  # noqa: SLF001 - its own code
    return "stride" not in view.__code__.co_names
