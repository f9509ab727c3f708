"""Launches both stages of decode attention under the memory checker.

Contract cases call the wrapper on views of any geometry. Wired ones are what
`forward_mqa` of the Triton MLA backend would launch: on the view that the release makes
of the pool, with its own scratch, splits and rows.
"""

import importlib.util
import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._decode_rows import Cache, Rows, compared, fill, make_rows, placed
from fuzz.targets._escaped import tree_raised
from fuzz.targets._sparse_pool import sparse_pool
from fuzz.targets._wired_attention import NotInThisReleaseError, wired_view
from invariants.decode_attention import Observation
from invariants.decode_case import Case, geometry
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory, Ownership
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import Geometry

_OPS = "vllm.v1.attention.ops.triton_decode_attention"
# Of an H100 or H200, which bound the splits.
_COMPUTE_UNITS = 132
RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="decode_attention: the page of the next column",
        origin="contract",
        edits=(
            SourceEdit(
                modules=(_OPS,),
                function="_fwd_grouped_kernel_stage1",
                old="+ offs_n // PAGE_SIZE,",
                new="+ offs_n // PAGE_SIZE + 1,",
            ),
        ),
        invariant="DECODE-OWNED",
        cases=60,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    if importlib.util.find_spec(_OPS) is None:
        return "no vllm/v1/attention/ops/triton_decode_attention.py"
    importlib.import_module("vllm.v1.attention.backends.mla.triton_mla")
    importlib.import_module("vllm.v1.worker.gpu.attn_utils")
    return None


# Arguments of `decode_attention_fwd` by name.
_Launch = dict[str, Any]


def run(case: Case) -> Observation:
    """Launch both stages once, and judge every access."""
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    place = _documented(case)
    rows = make_rows(case)
    with sparse_pool(place.size_bytes) as pool:
        cache = placed(case, place, pool)
        try:
            launch = (
                _wired(case, rows, pool.bytes)
                if case.origin == "wired"
                else _contract(case, rows, cache)
            )
        except NotInThisReleaseError as reason:
            return Observation(skipped=str(reason))
        contents = fill(case, pool, cache) if case.compared else None
        memory = _known(case, rows, launch)
        with checked_launches(memory, values=case.compared) as log:
            try:
                decode_attention_fwd(**launch)
            except Exception as error:  # noqa: BLE001 - an observation too
                return Observation(raised=tree_raised(error))
        found = findings_of(log)
        differ = contents is not None and not found and not log.undecided
        return Observation(
            findings=found,
            undecided=log.undecided,
            splits=launch["num_kv_splits"],
            block_stride=place.block_stride,
            element_bytes=place.element_bytes,
            scratch_stride=launch["attn_logits"].stride(0),
            mismatches=compared(
                case,
                rows,
                contents,
                output=launch["o"],
                lse=launch["lse"],
                scale=launch["sm_scale"],
            )
            if differ and contents is not None
            else (),
        )


def _documented(case: Case) -> Geometry:
    """Where contents lie: token by token, and layers of a block side by side."""
    if case.origin == "contract":
        return geometry(case)
    padding = case.padding // geometry(case).element_bytes
    return geometry(replace(case, padding=padding))


def _known(case: Case, rows: Rows, launch: _Launch) -> Memory:
    """Who owns the pool's blocks, what is input, and what is scratch."""
    memory = Memory()
    owned = set(case.layout.owned_ids())
    states = dict.fromkeys(case.layout.freed, "freed") | {NULL_BLOCK: "the null block"}
    for name in ("k_buffer", "v_buffer"):
        view = launch[name]
        if case.flat:
            view = view.unflatten(0, (-1, case.block_size))
        memory.own(view, Ownership.of(view, readable=owned, states=states))
        memory.read_only(view)
    for tensor in (launch["q"], launch["req_to_token"], launch["b_seq_len"]):
        memory.read_only(tensor)
    for tensor in (rows.key_unit, rows.value_unit):
        memory.read_only(tensor)
    memory.scratch(launch["attn_logits"])
    return memory


def _contract(case: Case, rows: Rows, cache: Cache) -> _Launch:
    """The wrapper's arguments.

    Raises:
        NotInThisReleaseError: The release takes pages for neighbours, as it says.
    """
    from vllm.v1.attention.ops import triton_decode_attention as ops

    dense = cache.key.stride(0) == case.block_size * cache.key.stride(1)
    if not hasattr(ops, "_page_stride") and not dense:
        # get_kv_cache_stride_order of MLACommonBackend, 0.20.1: layers apart.
        raise NotInThisReleaseError("this release wants pages that are neighbours")
    key, value = cache.key, cache.value
    if case.flat:
        key, value = key.flatten(0, 1), value.flatten(0, 1)
    row = case.heads * case.splits * (case.value_size + 1)
    stride = row + case.scratch_padding
    scratch = torch.empty((case.rows - 1) * stride + row).as_strided(
        (case.rows, case.heads, case.splits, case.value_size + 1),
        (stride, case.splits * (case.value_size + 1), case.value_size + 1, 1),
    )
    shape = (case.rows, case.heads, case.value_size)
    return {
        "q": rows.query,
        "k_buffer": key,
        "v_buffer": value,
        "o": torch.full(shape, torch.nan, dtype=rows.query.dtype),
        "lse": torch.full(shape[:2], torch.nan),
        "req_to_token": rows.table,
        "b_seq_len": rows.used,
        "attn_logits": scratch.fill_(torch.nan),
        "num_kv_splits": case.splits,
        "sm_scale": case.key_size**-0.5,
        "page_size": case.block_size,
        "logit_cap": case.logit_cap,
        "k_scale": rows.key_unit,
        "v_scale": rows.value_unit,
        "is_mla": case.form == "latent",
    }


def _wired(case: Case, rows: Rows, pool: torch.Tensor) -> _Launch:
    """What the backend would launch with.

    The backend is made without its constructor, which wants FlashAttention for
    prefills; what a decode reads of it is set here.

    Raises:
        NotInThisReleaseError: When the release never makes such a pool or batch.
    """
    from vllm.v1.attention.backends.mla import triton_mla

    if case.query_len > 1 and not hasattr(triton_mla, "max_decode_query_len"):
        raise NotInThisReleaseError("this release decodes one token of each request")
    cache = _wired_cache(case, pool)
    backend = object.__new__(triton_mla.TritonMLAImpl)
    backend.kv_lora_rank = case.value_size
    backend.num_heads = case.heads
    backend.scale = case.key_size**-0.5
    backend.dcp_world_size = 1
    backend._sm_count = _COMPUTE_UNITS
    # `_build_decode` of MLACommonMetadataBuilder hands these on as they are.
    metadata = SimpleNamespace(
        max_seq_len=case.max_seq_len,
        causal=case.causal,
        decode=SimpleNamespace(block_table=rows.table, seq_lens=rows.used),
    )
    layer = SimpleNamespace(_k_scale=rows.key_unit)
    query = (
        rows.query[..., : case.value_size].contiguous(),
        rows.query[..., case.value_size :].contiguous(),
    )
    launched: list[dict[str, Any]] = []
    signature = inspect.signature(triton_mla.decode_attention_fwd)

    def note(*args: Any, **named: Any) -> None:
        launched.append(signature.bind(*args, **named).arguments)

    with mock.patch.object(triton_mla, "decode_attention_fwd", note):
        backend.forward_mqa(query, cache, metadata, layer)
    (arguments,) = launched
    return arguments


def _wired_cache(case: Case, pool: torch.Tensor) -> torch.Tensor:
    """``[blocks, block_size, key_size]``, viewed by the release's own code."""
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    spec = MLAAttentionSpec(
        block_size=case.block_size,
        num_kv_heads=1,
        head_size=case.key_size,
        dtype=STR_DTYPE_TO_TORCH_DTYPE["fp8" if case.cache == "fp8" else case.dtype],
        cache_dtype_str=case.cache,
    )
    if case.padding:
        spec = replace(spec, page_size_padded=spec.page_size_bytes + case.padding)
    size = spec.page_size_bytes * case.layout.pool_blocks * case.layers
    view = wired_view(
        case.reading, spec, pool[:size].view(torch.int8), backend=TritonMLABackend
    )
    if view.dim() > len("BNC"):
        # `bind_kv_cache` of MLAAttention.
        view = view.squeeze(1)
    return view.view(torch.float8_e4m3fn) if case.cache == "fp8" else view
