"""Launches of verify attention made ready: the pool, its views, and the call.

Contract cases call `unified_attention` (or `SpecDecodeAttention`, where a tree has it)
on tensors of any geometry; wired ones are made by the release.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.targets._paged_cache import (
    KEY_DEQUANT,
    VALUE_DEQUANT,
    CacheViews,
    placed_views,
    softmax_scale,
)
from fuzz.targets._sparse_pool import SparsePool, sparse_pool
from fuzz.targets._splitkv_control import splitkv_control_attention
from fuzz.targets._verify_batch import Batch
from fuzz.targets._wired_attention import (
    NotInThisReleaseError,
    documented_geometry,
    wired_arguments,
)
from invariants.verify_case import Case, geometry

_OPS = "vllm.v1.attention.ops"
_SPEC_DECODE = f"{_OPS}.spec_decode_attn"
_SEGMENTS = 4
_SCRATCH = ("output", "max", "expsum")


def attention_absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    if importlib.util.find_spec(f"{_OPS}.triton_unified_attention") is None:
        return "no vllm/v1/attention/ops/triton_unified_attention.py"
    importlib.import_module("vllm.v1.attention.backends.triton_attn")
    importlib.import_module("vllm.v1.worker.gpu.attn_utils")
    return None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch made ready: its cache, and the call that runs it.

    Attributes:
        views: What the kernels get.
        written: Where their contents are written to.
        scratch: Tensors that one kernel of the launch leaves for the next.
        run: Runs the kernels and says whether the split-KV path was taken.
    """

    views: CacheViews
    written: CacheViews
    scratch: tuple[torch.Tensor, ...]
    run: Callable[[], bool]


@contextmanager
def opened_launch(case: Case, batch: Batch) -> Iterator[tuple[SparsePool, Launch]]:
    """A case's launch on its pool, which is gone when the context ends.

    Raises:
        NotInThisReleaseError: When the tree never makes such a launch.
    """
    if case.kernel == "spec_decode_attn":
        if importlib.util.find_spec(_SPEC_DECODE) is None:
            raise NotInThisReleaseError("this tree has no spec_decode_attn")
        if case.scaled or case.cache == "fp8" or case.window:
            raise NotInThisReleaseError(
                "spec_decode_attn takes neither scales nor a window"
            )
    wired = case.origin == "wired" and not case.kernel.startswith("control")
    with (_wired_launch if wired else _contract_launch)(case, batch) as opened:
        yield opened


@contextmanager
def _contract_launch(case: Case, batch: Batch) -> Iterator[tuple[SparsePool, Launch]]:
    place = geometry(case)
    with sparse_pool(place.size_bytes) as pool:
        views = placed_views(case, place, pool)
        scratch = _scratch(case, batch)
        calls: dict[str, Callable[[], bool]] = {
            "unified_2d": lambda: _unified(case, batch, views, scratch),
            "unified_3d": lambda: _unified(case, batch, views, scratch),
            "spec_decode_attn": lambda: _spec_decode(case, batch, views),
            "control_broken": lambda: control_launch(
                case, batch, views, wide_ids=False
            ),
            "control_fixed": lambda: control_launch(case, batch, views, wide_ids=True),
        }
        yield (
            pool,
            Launch(
                views=views,
                written=views,
                scratch=_tensors(scratch),
                run=calls[case.kernel],
            ),
        )


def control_launch(
    case: Case, batch: Batch, views: CacheViews, *, wide_ids: bool
) -> bool:
    """Launch the control; with wide ids, its fixed arm."""
    fp8 = case.cache == "fp8"
    splitkv_control_attention(
        q=batch.query,
        key_cache=views.key,
        value_cache=views.value,
        out=batch.out,
        cu_seqlens_q=batch.cu_query,
        seqused_k=batch.used,
        block_table=batch.table,
        scale=softmax_scale(case),
        max_query_len=max(case.query_lens),
        window=case.window,
        key_scale_cache=views.key_scale,
        value_scale_cache=views.value_scale,
        key_dequant=KEY_DEQUANT if fp8 else 1.0,
        value_dequant=VALUE_DEQUANT if fp8 else 1.0,
        wide_ids=wide_ids,
    )
    return True


def _spec_decode(case: Case, batch: Batch, views: CacheViews) -> bool:
    """The kernel that some patched trees add; no release has its module.

    ``vllm/v1/attention/ops/spec_decode_attn.py`` then holds
    ``SpecDecodeAttention(max_num_reqs, num_heads, head_dim, device, qmax)``, and its
    ``run(q, key_cache, value_cache, out, cu_seqlens_q, seqused_k, block_table, scale,
    num_reqs, max_query_len)`` is called in that order.
    """
    module = importlib.import_module(_SPEC_DECODE)
    attention = module.SpecDecodeAttention(
        max_num_reqs=len(case.query_lens),
        num_heads=case.shape.heads,
        head_dim=case.shape.head_size,
        device=torch.device("cpu"),
        qmax=max(case.query_lens),
    )
    attention.run(
        batch.query,
        views.key,
        views.value,
        batch.out,
        batch.cu_query,
        batch.used,
        batch.table,
        softmax_scale(case),
        len(case.query_lens),
        max(case.query_lens),
    )
    return True


def _scratch(case: Case, batch: Batch) -> dict[str, Any]:
    """What offers the split-KV path; the wrapper decides whether it is taken."""
    if case.kernel != "unified_3d":
        return {}
    count = {"tokens": len(batch.query), "requests": len(batch.used)}
    rows = (count[case.scratch], case.shape.heads, _SEGMENTS)
    width = 1 << (case.shape.head_size - 1).bit_length()
    return {
        "seq_threshold_3D": 2**20,
        "num_par_softmax_segments": _SEGMENTS,
        "softmax_segm_output": torch.full((*rows, width), torch.nan),
        "softmax_segm_max": torch.full(rows, torch.nan),
        "softmax_segm_expsum": torch.full(rows, torch.nan),
    }


def _tensors(arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The scratch among a launch's arguments."""
    named = (arguments.get(f"softmax_segm_{name}") for name in _SCRATCH)
    return tuple(each for each in named if each is not None)


def _unified(
    case: Case, batch: Batch, views: CacheViews, scratch: dict[str, Any]
) -> bool:
    """Call the wrapper itself."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    requests, shape = len(batch.used), case.shape
    fp8 = case.cache == "fp8"
    heads = (requests, shape.kv_heads)
    unified_attention(
        q=batch.query,
        k=views.key,
        v=views.value,
        out=batch.out,
        cu_seqlens_q=batch.cu_query,
        max_seqlen_q=max(case.query_lens),
        seqused_k=batch.used,
        max_seqlen_k=max(case.layout.num_tokens),
        softmax_scale=softmax_scale(case),
        causal=True,
        window_size=(case.window - 1, 0) if case.window else (-1, -1),
        block_table=batch.table,
        softcap=0,
        q_descale=None,
        k_descale=torch.tensor(KEY_DEQUANT).expand(heads) if fp8 else None,
        v_descale=torch.tensor(VALUE_DEQUANT).expand(heads) if fp8 else None,
        kv_quant_mode=get_kv_quant_mode(case.cache),
        k_scale_cache=views.key_scale,
        v_scale_cache=views.value_scale,
        sinks=batch.sinks,
        **scratch,
    )
    return _was_split(scratch)


def _was_split(arguments: dict[str, Any]) -> bool:
    maxima = arguments.get("softmax_segm_max")
    return maxima is not None and not bool(torch.isnan(maxima).all())


@contextmanager
def _wired_launch(case: Case, batch: Batch) -> Iterator[tuple[SparsePool, Launch]]:
    """What the release would launch, ready to be launched."""
    with wired_arguments(case, batch) as (pool, arguments):
        views = CacheViews(
            key=arguments["k"],
            value=arguments["v"],
            key_scale=arguments["k_scale_cache"],
            value_scale=arguments["v_scale_cache"],
        )

        def launch() -> bool:
            from vllm.v1.attention.ops.triton_unified_attention import unified_attention

            unified_attention(**arguments)
            return _was_split(arguments)

        written = placed_views(case, documented_geometry(case), pool)
        scratch = _tensors(arguments)
        yield (
            pool,
            Launch(views=views, written=written, scratch=scratch, run=launch),
        )
