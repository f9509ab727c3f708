"""Runs speculative-verify attention kernels on a paged cache, in Triton's interpreter.

Contract cases call `unified_attention` (or `SpecDecodeAttention`, where a tree has it)
on tensors of any geometry; wired ones are made by the release. Integers wrap here as on
a GPU (`_interpreter`); specialisation to 1 and multiples of 16 changes no value. Only
owned blocks have addresses (`_sparse_pool`): a wrapped one ends the process.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.runtime import Control, Runtime
from fuzz.targets._escaped import tree_raised
from fuzz.targets._interpreter import InterpreterGap, corrected_interpreter
from fuzz.targets._paged_cache import (
    KEY_DEQUANT,
    VALUE_DEQUANT,
    CacheViews,
    Contents,
    draw_contents,
    fill_cache,
    placed_views,
    softmax_scale,
    worst_mismatch,
)
from fuzz.targets._sparse_pool import SparsePool, sparse_pool
from fuzz.targets._splitkv_control import splitkv_control_attention
from fuzz.targets._verify_batch import Batch, bits_of, make_batch
from fuzz.targets._wired_attention import (
    NotInThisReleaseError,
    documented_geometry,
    wired_arguments,
)
from invariants.scheduling import NULL_BLOCK
from invariants.verify_attention import Observation
from invariants.verify_case import Case, geometry

RUNTIME = Runtime(
    triton="interpret", isolated=True, timeout_s=60.0, memory_bytes=3 << 30
)
CONTROLS = (
    Control(
        name="verify_attention: block id times stride in 32 bits",
        origin="contract",
        edits=(),
        invariant="VERIFY-ADDRESS",
        cases=10,
    ),
)

_OPS = "vllm.v1.attention.ops"
_SPEC_DECODE = f"{_OPS}.spec_decode_attn"
_SEGMENTS = 4


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    if importlib.util.find_spec(f"{_OPS}.triton_unified_attention") is None:
        return "no vllm/v1/attention/ops/triton_unified_attention.py"
    importlib.import_module("vllm.v1.attention.backends.triton_attn")
    importlib.import_module("vllm.v1.worker.gpu.attn_utils")
    return None


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """A launch made ready: its cache, and the call that runs it.

    Attributes:
        views: What the kernels get.
        written: Where their contents are written to.
        run: Runs the kernels and says whether the split-KV path was taken.
    """

    views: CacheViews
    written: CacheViews
    run: Callable[[], bool]


def run(case: Case) -> Observation:
    """Launch the case's kernel once, in a process that may die of it."""
    if case.kernel == "spec_decode_attn":
        if importlib.util.find_spec(_SPEC_DECODE) is None:
            return Observation(skipped="this tree has no spec_decode_attn")
        if case.scaled or case.cache == "fp8" or case.window:
            return Observation(
                skipped="spec_decode_attn takes neither scales nor a window"
            )
    contents = draw_contents(case)
    batch = make_batch(case, contents)
    wired = case.origin == "wired" and not case.kernel.startswith("control")
    opened = _wired_launch if wired else _contract_launch
    try:
        with corrected_interpreter(), opened(case, batch) as (pool, launch):
            return _observe(case, contents, batch, pool, launch)
    except NotInThisReleaseError as reason:
        return Observation(skipped=str(reason))


def _observe(
    case: Case, contents: Contents, batch: Batch, pool: SparsePool, launch: _Launch
) -> Observation:
    null_block = any(NULL_BLOCK in row for row in case.layout.block_ids[0])
    fill_cache(pool, launch.written, contents, null_block=null_block)
    before = {name: each.clone() for name, each in batch.inputs().items()}
    cache_before = pool.checksum()
    try:
        split = launch.run()
    except Exception as error:  # noqa: BLE001 - any exception is an observation
        cause = error.__cause__ or error
        if isinstance(cause, InterpreterGap):
            return Observation(skipped=f"the interpreter gets {cause} wrong")
        return Observation(raised=tree_raised(error))
    changed = [
        name
        for name, each in batch.inputs().items()
        if not torch.equal(bits_of(each), bits_of(before[name]))
    ]
    if pool.checksum() != cache_before:
        changed.append("the KV cache")
    scale = launch.views.key_scale
    twin_differs = None
    if case.kernel == "control_fixed" and not case.may_wrap:
        fixed = batch.out.clone()
        _control(case, batch, launch.views, wide_ids=False)
        twin_differs = int((bits_of(fixed) != bits_of(batch.out)).sum())
    return Observation(
        split=split,
        block_stride=launch.views.key.stride(0),
        head_stride=launch.views.key.stride(2),
        scale_stride=0 if scale is None else scale.stride(0),
        scale_head_stride=0 if scale is None else scale.stride(2),
        element_bytes=launch.views.key.element_size(),
        mismatch=worst_mismatch(case, contents, batch.out),
        changed=tuple(changed),
        twin_differs=twin_differs,
    )


@contextmanager
def _contract_launch(case: Case, batch: Batch) -> Iterator[tuple[SparsePool, _Launch]]:
    place = geometry(case)
    with sparse_pool(place.size_bytes) as pool:
        views = placed_views(case, place, pool)
        calls: dict[str, Callable[[], bool]] = {
            "unified_2d": lambda: _unified(case, batch, views),
            "unified_3d": lambda: _unified(case, batch, views),
            "spec_decode_attn": lambda: _spec_decode(case, batch, views),
            "control_broken": lambda: _control(case, batch, views, wide_ids=False),
            "control_fixed": lambda: _control(case, batch, views, wide_ids=True),
        }
        yield pool, _Launch(views=views, written=views, run=calls[case.kernel])


def _control(case: Case, batch: Batch, views: CacheViews, *, wide_ids: bool) -> bool:
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


def _unified(case: Case, batch: Batch, views: CacheViews) -> bool:
    """Call the wrapper itself; with scratch, it may choose its split-KV path."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    requests, shape = len(case.query_lens), case.shape
    scratch: dict[str, Any] = {}
    if case.kernel == "unified_3d":
        rows = (len(batch.query), shape.heads, _SEGMENTS)
        width = 1 << (shape.head_size - 1).bit_length()
        scratch = {
            "seq_threshold_3D": 2**20,
            "num_par_softmax_segments": _SEGMENTS,
            "softmax_segm_output": torch.full((*rows, width), torch.nan),
            "softmax_segm_max": torch.full(rows, torch.nan),
            "softmax_segm_expsum": torch.full(rows, torch.nan),
        }
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
        **scratch,
    )
    return _was_split(scratch)


def _was_split(arguments: dict[str, Any]) -> bool:
    maxima = arguments.get("softmax_segm_max")
    return maxima is not None and not bool(torch.isnan(maxima).all())


@contextmanager
def _wired_launch(case: Case, batch: Batch) -> Iterator[tuple[SparsePool, _Launch]]:
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
        yield pool, _Launch(views=views, written=written, run=launch)
