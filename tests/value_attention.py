"""Attention kernels in value mode on contract cases of their fuzz target.

Contents, pool and the dense float64 reference are the target's; the calls are written
out here, for a GPU's arguments.
"""

import importlib
from typing import Any

import torch

from fuzz.execution import Executor
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from invariants.verify_case import Case, geometry
from tests.value_launches import Outcome, changed, excess, outcome, unit

UNIFIED = "vllm.v1.attention.ops.triton_unified_attention"
CONTROL = "fuzz.targets._splitkv_control"
SEGMENTS = 4


def attention(
    _: Executor, case: Case, planted: tuple[str, str] | None = None
) -> Outcome:
    """Run a contract case.

    Of the outcome, `output` is the share of elements beyond what their reference
    allows, and `cache` is 1 when the kernel wrote to the cache.
    """
    from fuzz.targets import _paged_cache as paged
    from fuzz.targets._sparse_pool import sparse_pool
    from fuzz.targets._verify_batch import make_batch

    contents = paged.draw_contents(case)
    batch = make_batch(case, contents.query)
    control = case.kernel.startswith("control")
    kernel = "splitkv_control_partial" if control else "kernel_unified_attention"
    memory = Memory()
    output = batch.out.untyped_storage().data_ptr()
    for each in batch.inputs().values():
        # The rows beside the output share its storage.
        if each.untyped_storage().data_ptr() != output:
            memory.read_only(each)
    place = geometry(case)
    with (
        changed(CONTROL if control else UNIFIED, kernel, planted),
        sparse_pool(place.size_bytes) as pool,
    ):
        views = paged.placed_views(case, place, pool)
        paged.fill_cache(pool, views, contents, null_block=False)
        before = pool.checksum()
        with checked_launches(memory, values=True) as log:
            (_control if control else _unified)(case, batch, views)
        written = pool.checksum() != before
        mismatch = paged.worst_mismatch(case, contents, batch.out)
    outside = 0.0 if mismatch is None else mismatch.outside / mismatch.elements
    return outcome(log, output=outside, cache=float(written))


def _dequant(case: Case) -> tuple[float, float]:
    from fuzz.targets._paged_cache import KEY_DEQUANT, VALUE_DEQUANT

    return (KEY_DEQUANT, VALUE_DEQUANT) if case.cache == "fp8" else (1.0, 1.0)


def _control(case: Case, batch: Any, views: Any) -> None:
    from fuzz.targets._paged_cache import softmax_scale

    key_dequant, value_dequant = _dequant(case)
    importlib.import_module(CONTROL).splitkv_control_attention(
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
        key_dequant=key_dequant,
        value_dequant=value_dequant,
        wide_ids=True,
    )


def _unified(case: Case, batch: Any, views: Any) -> None:
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    from fuzz.targets._paged_cache import softmax_scale

    scratch: dict[str, Any] = {}
    if case.kernel == "unified_3d":
        rows = (len(batch.query), case.shape.heads, SEGMENTS)
        scratch = {
            "seq_threshold_3D": 2**20,
            "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": torch.full((*rows, case.shape.head_size), torch.nan),
            "softmax_segm_max": torch.full(rows, torch.nan),
            "softmax_segm_expsum": torch.full(rows, torch.nan),
        }
    heads = (len(case.query_lens), case.shape.kv_heads)
    scales: tuple[Any, ...] = (None, None)
    if case.cache == "fp8":
        scales = tuple(torch.tensor(each).expand(heads) for each in _dequant(case))
    importlib.import_module(UNIFIED).unified_attention(
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
        k_descale=scales[0],
        v_descale=scales[1],
        kv_quant_mode=get_kv_quant_mode(case.cache),
        k_scale_cache=views.key_scale,
        v_scale_cache=views.value_scale,
        **scratch,
    )


def after_a_masked_tile(_: Executor, strength: float) -> Outcome:
    """A sliding window that hides all of the first tile from the last queries.

    Args:
        _: Unused.
        strength: Of the queries; scores are about -11 times as much.
    """
    tokens, queries, size, window, slots = 72, 16, 32, 4, 16
    generator = torch.Generator().manual_seed(1)

    def normal() -> torch.Tensor:
        return torch.randn(6, slots, 1, size, generator=generator)

    query = torch.full((queries, 1, size), -strength).to(torch.bfloat16)
    key = (normal() / 10 + 2).to(torch.bfloat16)
    value = normal().to(torch.bfloat16)
    out = torch.zeros_like(query)
    with checked_launches(values=True) as log:
        importlib.import_module(UNIFIED).unified_attention(
            q=query,
            k=key,
            v=value,
            out=out,
            cu_seqlens_q=torch.tensor([0, queries], dtype=torch.int32),
            max_seqlen_q=queries,
            seqused_k=torch.tensor([tokens], dtype=torch.int32),
            max_seqlen_k=tokens,
            softmax_scale=size**-0.5,
            causal=True,
            window_size=(window - 1, 0),
            block_table=torch.arange(6, dtype=torch.int32)[None],
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
        )
    keys, values = (each.flatten(0, 2)[:tokens].double() for each in (key, value))
    score = query[:, 0].double() @ keys.T * size**-0.5
    at, position = torch.arange(tokens), torch.arange(tokens - queries, tokens)[:, None]
    hidden = (at > position) | (at <= position - window)
    want = score.masked_fill(hidden, -torch.inf).softmax(-1) @ values
    # Weights are rounded to bf16, scores to float32 before the exponential.
    step = torch.finfo(torch.float32).eps / 2
    relative = unit(torch.bfloat16) + float(score.abs().max()) * (size + 4) * step
    inner = torch.full_like(want, relative * float(values.abs().max()))
    return outcome(log, output=excess(out[:, 0], want, inner))
