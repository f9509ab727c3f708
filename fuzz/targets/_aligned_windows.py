"""Runs `mamba_get_block_table_tensor` on tables as documented and as vLLM makes them.

Contract: a table of distinct ids inside an allocation of other ids, so that a read
beyond its row shows as a foreign id. Wired: the tree's own sizing, allocation and rows
(`fuzz.targets._mamba_engine`).
The CUDA branch runs by a tensor that calls itself CUDA; what runs its kernel is given.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

from fuzz.targets._cuda_view import as_cuda
from fuzz.targets._escaped import tree_raised
from fuzz.targets._mamba_engine import (
    AllocationFailed,
    BatchStep,
    RowUnfit,
    batch_steps,
    started,
)
from fuzz.targets._mamba_rows import Kernels, v2_missing
from fuzz.targets._virtual import virtual
from invariants.mamba_table_values import (
    Case,
    GivenTable,
    Observation,
    WindowCall,
)
from invariants.model import Raised

if TYPE_CHECKING:
    import torch

HOME = "vllm.v1.attention.backends.utils"
# Room for a whole window of the largest column step beyond the last row.
GUARD_COLUMNS = 65


def absent() -> str | None:
    """Why this tree has no aligned Mamba block table, None when it has."""
    if not hasattr(_backend_utils(), "mamba_get_block_table_tensor"):
        return f"{HOME} has no mamba_get_block_table_tensor"
    return None


def observed(case: Case, kernels: Kernels) -> Observation:
    """Run one case on the tree of this process, kernels by what is given."""
    if case.mode not in _modes():
        return Observation(absent=f"mode {case.mode} is absent in this tree")
    if case.engine is not None and case.engine.runner == "v2" and v2_missing():
        return Observation(absent=v2_missing())
    kernel = hasattr(_backend_utils(), "_mamba_align_block_table_kernel")
    if case.given is not None:
        call = _called(case, kernels, *_guarded(case, case.given))
        return Observation(kernel=kernel, calls=(call,))
    return _served(case, kernels, kernel=kernel)


def _served(case: Case, kernels: Kernels, *, kernel: bool) -> Observation:
    """Serve a wired case, until its end or to where the tree raises."""
    engine = started(case, kernels)
    calls: list[WindowCall] = []
    ended = Observation(kernel=kernel)
    try:
        calls.extend(
            _called(case, kernels, step.table, step.seq_lens, step=step)
            for step in batch_steps(engine)
        )
    except AllocationFailed as failed:
        ended = replace(ended, unallocated=tree_raised(failed.error))
    except RowUnfit as unfit:
        ended = replace(
            ended,
            unfit=tree_raised(unfit.error),
            unfit_columns=(unfit.blocks, unfit.columns),
        )
    return replace(ended, calls=tuple(calls), steps=tuple(engine.steps))


def _backend_utils() -> ModuleType:
    from vllm.v1.attention.backends import utils

    module: ModuleType = utils
    return module


def _modes() -> tuple[str, ...]:
    """Modes of this release; ``all`` is gone from 0.32 on."""
    from vllm.config.cache import MambaCacheMode

    return get_args(MambaCacheMode)


def _guarded(case: Case, given: GivenTable) -> "tuple[torch.Tensor, torch.Tensor]":
    """Table ``[rows, columns]`` and lengths ``[rows]``, views inside larger tensors.

    Each element of the allocation is its position plus one: an id says where it was
    read. Where rows are far apart, only elements near them have numbers.
    Lengths between those of the case are `max_model_len`.
    """
    import torch

    rows, columns = len(given.seq_lens), case.documented_columns
    pitch = columns * given.column_step + given.row_gap
    near = GUARD_COLUMNS * given.column_step
    guard = pitch + near
    start = guard + given.first_row * pitch
    count = start + rows * pitch + guard
    if given.far:
        memory = virtual((count,), torch.int32)
        _number(memory, [start + row * pitch for row in range(rows)], near)
    else:
        memory = torch.arange(1, count + 1, dtype=torch.int32)
    table = memory.as_strided((rows, columns), (pitch, given.column_step), start)
    step = given.length_step
    lengths = torch.full(
        ((rows + 2) * step,), case.max_model_len, dtype=torch.int32
    ).as_strided((rows,), (step,), step)
    lengths.copy_(torch.tensor(given.seq_lens, dtype=torch.int32))
    return table, lengths


def _number(memory: "torch.Tensor", rows: list[int], near: int) -> None:
    """Give elements around the starts of rows numbers from 1 on; others stay 0."""
    import torch

    number = 1
    for start in rows:
        # Rows are at most as long as what lies near them, on either side.
        part = memory[start - near : start + 2 * near]
        part.copy_(torch.arange(number, number + len(part), dtype=torch.int32))
        number += len(part)


def _called(
    case: Case,
    kernels: Kernels,
    table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    *,
    step: BatchStep | None = None,
) -> WindowCall:
    """Call the function, and compare its inputs before and after."""
    import torch

    given_table, given_lengths = table.tolist(), seq_lens.tolist()
    raised: Raised | None = None
    try:
        result = _window(case, kernels, table, seq_lens).as_subclass(torch.Tensor)
    except Exception as error:  # noqa: BLE001 - whatever escapes is the observation
        raised = tree_raised(error)
    return WindowCall(
        step=step.number if step else 0,
        table=tuple(map(tuple, given_table)),
        seq_lens=tuple(given_lengths),
        owned=step.owned if step else (),
        used=step.used if step else (),
        fresh=step.fresh if step else (),
        moves=step.moves if step else (),
        result=raised or _rows(result),
        result_shape=() if raised else tuple(result.shape),
        result_dtype="" if raised else str(result.dtype).removeprefix("torch."),
        inputs_kept=table.tolist() == given_table
        and seq_lens.tolist() == given_lengths,
    )


def _window(
    case: Case, kernels: Kernels, table: "torch.Tensor", seq_lens: "torch.Tensor"
) -> "torch.Tensor":
    """What the tree's function gives, by the branch that the case asks for."""
    utils = _backend_utils()
    running: AbstractContextManager[None] = nullcontext()
    if case.branch == "triton":
        table, seq_lens = as_cuda(table), as_cuda(seq_lens)
        running = kernels.window(utils, (table, seq_lens))
    with running:
        window: torch.Tensor = utils.mamba_get_block_table_tensor(
            table, seq_lens, _mamba_spec(case), case.mode
        )
    return window


def _rows(result: "torch.Tensor") -> tuple[tuple[int, ...], ...]:
    """Contents of a matrix; () for another shape, which the observation tells."""
    return tuple(map(tuple, result.tolist())) if result.dim() == 2 else ()


def _mamba_spec(case: Case) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(
        block_size=case.block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=case.mode,
        num_speculative_blocks=case.num_speculative_blocks,
    )
