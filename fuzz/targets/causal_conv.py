"""Launches the kernels of the causal convolution under the memory checker.

Wired cases call the wrappers as the GDN layer does, prompts with the builder's chunk
tables; contract ones as their docstrings allow. The CPU platform gives the wrappers'
names to other functions: what runs is what a GPU would run.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._conv_rows import (
    Step,
    compared,
    fill_windows,
    make_step,
    windows_of,
)
from fuzz.targets._escaped import tree_raised
from fuzz.targets._real_launch import as_defined, imported
from fuzz.targets._sparse_pool import sparse_pool
from invariants.causal_conv import Observation
from invariants.causal_conv_case import Case
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory, Ownership
from invariants.scheduling import NULL_BLOCK

_OPS = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="causal_conv: the window before the accepted one",
        origin="wired",
        edits=(
            SourceEdit(
                modules=(_OPS,),
                function="_causal_conv1d_update_kernel",
                old="tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 1",
                new="tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 2",
            ),
        ),
        invariant="CONV-OWNED",
        cases=60,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    try:
        imported(_OPS)
    except (StopIteration, ModuleNotFoundError):
        return f"no {_OPS.replace('.', '/')}.py"
    return None


def run(case: Case) -> Observation:
    """Launch the case's kernel once, and judge every access."""
    step = make_step(case)
    with sparse_pool(case.pool_bytes) as pool:
        windows = windows_of(case, pool)
        before = fill_windows(case, pool, windows) if case.compared else None
        memory = _known(case, step, windows)
        call = _prefill if case.form == "prefill" else _update
        with checked_launches(memory, values=case.compared) as log:
            try:
                output = call(case, step, windows)
            except Exception as error:  # noqa: BLE001 - an observation too
                return Observation(raised=tree_raised(error))
        found = findings_of(log)
        if before is None or found or log.undecided:
            return Observation(findings=found, undecided=log.undecided)
        return Observation(mismatches=compared(case, step, before, output, windows))


def _known(case: Case, step: Step, windows: torch.Tensor) -> Memory:
    """Whose windows are read and written; padding has none."""
    memory = Memory()
    prompts = case.form == "prefill"
    read = [row.block for row in case.rows if row.runs and (row.started or not prompts)]
    states = {NULL_BLOCK: "the null block"}
    memory.own(
        windows,
        Ownership.of(windows, readable=read, writable=case.blocks, states=states),
    )
    for tensor in step.read_only():
        memory.read_only(tensor)
    if prompts:
        memory.read_only(step.inputs.transpose(0, 1))
    return memory


def _prefill(case: Case, step: Step, windows: torch.Tensor) -> torch.Tensor:
    """Prompts, channel by channel as the layer transposes them."""
    metadata = None
    if case.origin == "wired":
        from vllm.v1.attention.backends import utils

        tables = utils.compute_causal_conv1d_metadata(
            step.starts, device=torch.device("cpu")
        )
        names = ("nums_dict", "batch_ptr", "token_chunk_offset_ptr")
        metadata = SimpleNamespace(**dict(zip(names, tables, strict=True)))
    convolve: Callable[..., torch.Tensor] = as_defined(
        imported(_OPS), "causal_conv1d_fn"
    )
    output = convolve(
        step.inputs.transpose(0, 1),
        step.weight,
        step.bias,
        activation="silu" if case.silu else None,
        conv_states=windows,
        has_initial_state=step.started,
        cache_indices=step.blocks,
        query_start_loc=step.starts,
        metadata=metadata,
    )
    return output.transpose(0, 1)


def _update(case: Case, step: Step, windows: torch.Tensor) -> torch.Tensor:
    """One token each, or one and some drafts; inputs become outputs."""
    named: dict[str, Any] = {"validate_data": case.form == "decode"}
    if case.form == "verify":
        named |= {
            "num_accepted_tokens": step.accepted,
            "query_start_loc": step.starts,
            "max_query_len": 1 + case.drafts,
        }
    convolve: Callable[..., torch.Tensor] = as_defined(
        imported(_OPS), "causal_conv1d_update"
    )
    return convolve(
        step.inputs,
        windows,
        step.weight,
        step.bias,
        "silu" if case.silu else None,
        conv_state_indices=step.blocks,
        **named,
    )
