"""Launches the kernels that write keys and values, under the memory checker.

Contract cases call the wrappers on views of any geometry; wired ones are the backend's
own cache update, on the view that the release makes of the pool. Pages exist where a
case is compared, and only those of the blocks that it writes to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._kv_rows import KvRows, Step, compared, erase_rows, make_step, placed
from fuzz.targets._paged_cache import block_extents
from fuzz.targets._sparse_pool import sparse_pool
from fuzz.targets._verify_launch import attention_absent
from fuzz.targets._wired_attention import (
    NoFill,
    NotInThisReleaseError,
    documented_geometry,
    wired_spec,
    wired_view,
)
from invariants.kv_write import Mismatch, Observation
from invariants.kv_write_case import Case, geometry
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory, Ownership
from invariants.scheduling import NULL_BLOCK

_OPS = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="kv_write: block offsets in 32 bits",
        origin="contract",
        edits=(
            SourceEdit(
                modules=(_OPS,),
                function="_reshape_cache_per_token_head",
                old="+ blk * stride_kc_blk",
                new="+ (blk * stride_kc_blk).to(tl.int32)",
            ),
        ),
        invariant="KV-WRITE-EXACT",
        cases=150,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    return attention_absent()


def run(case: Case) -> Observation:
    """Launch the case's kernel once, and judge every access."""
    place = (
        documented_geometry(case.reading) if case.origin == "wired" else geometry(case)
    )
    step = make_step(case)
    with sparse_pool(place.size_bytes) as pool, _gpu():
        rows = placed(case, place, pool)
        memory = _known(case, step, rows)
        try:
            launch = (
                _wired(case, step, pool.bytes)
                if case.origin == "wired"
                else _contract(case, step, rows)
            )
        except NotInThisReleaseError as reason:
            return Observation(skipped=str(reason))
        if case.compared:
            pool.open(
                extent
                for view in rows.views
                for block in case.blocks
                for extent in block_extents(pool, view, block)
            )
        before = pool.checksum()
        with checked_launches(memory, values=case.compared) as log:
            try:
                launch()
            except Exception as error:  # noqa: BLE001 - an observation too
                return Observation(raised=tree_raised(error))
        found = findings_of(log)
        mismatches: tuple[Mismatch, ...] = ()
        stray = False
        if case.compared and not found:
            mismatches = compared(case, step, rows)
            erase_rows(case, rows)
            stray = pool.checksum() != before
    scales = place.scale_strides if case.form == "per_token_head" else (0, 0, 0)
    return Observation(
        findings=found,
        undecided=log.undecided,
        block_stride=place.block_stride,
        scale_stride=scales[0],
        head_stride=max(place.head_stride, scales[2]),
        element_bytes=place.element_bytes,
        mismatches=mismatches,
        stray=stray,
    )


@contextmanager
def _gpu() -> Iterator[None]:
    """The CPU platform has no capability; the GPU that is lowered for has 9.0."""
    from vllm.platforms import current_platform

    with mock.patch.object(
        current_platform, "has_device_capability", return_value=True
    ):
        yield


def _known(case: Case, step: Step, rows: KvRows) -> Memory:
    """Blocks of the step may be stored to; nothing of the cache is read."""
    memory = Memory()
    states = {NULL_BLOCK: "the null block"}
    for view in rows.views:
        memory.own(
            view,
            Ownership.of(view, readable=(), writable=case.blocks, states=states),
        )
    for tensor in (step.key, step.value, step.slots, step.key_unit, step.value_unit):
        memory.read_only(tensor)
    return memory


def _contract(case: Case, step: Step, rows: KvRows) -> Callable[[], None]:
    """Call the wrapper itself."""
    from vllm.v1.attention.ops import triton_reshape_and_cache_flash as ops
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    inputs = (step.key, step.value)
    units = (step.key_unit, step.value_unit)
    if case.form == "per_token_head":
        write = ops.triton_reshape_and_cache_flash_per_token_head_quant
        named: dict[str, Any] = {"kv_quant_mode": get_kv_quant_mode(case.cache)}
        if "kv_quant_mode" not in write.__code__.co_varnames:
            named = {}
        return lambda: write(*inputs, *rows.views, step.slots, **named)
    write = (
        ops.triton_reshape_and_cache_flash_diffkv
        if case.form == "diffkv"
        else ops.triton_reshape_and_cache_flash
    )
    return lambda: write(*inputs, *rows.views, step.slots, case.cache, *units)


def _wired(case: Case, step: Step, pool: torch.Tensor) -> Callable[[], None]:
    """The backend's cache update on the release's own view.

    Raises:
        NotInThisReleaseError: When the release never makes such a pool.
    """
    from vllm.v1.attention.backends import triton_attn

    reading = case.reading
    spec = wired_spec(reading)
    size = spec.page_size_bytes * case.pool_blocks * case.layers
    kv_cache = wired_view(reading, spec, pool[:size].view(torch.int8))
    layer = SimpleNamespace(_k_scale=step.key_unit, _v_scale=step.value_unit)
    implementation = triton_attn.TritonAttentionImpl(
        num_heads=case.kv_heads,
        head_size=case.head_size,
        scale=1.0,
        num_kv_heads=case.kv_heads,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype=case.cache,
    )

    def launch() -> None:
        with NoFill():
            implementation.do_kv_cache_update(
                layer, step.key, step.value, kv_cache, step.slots
            )

    return launch
