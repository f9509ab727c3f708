"""Block tables of the workers, sized by the model runner's own code.

Each class drives one generation of the worker as its runner does: V1's input batch with
`MultiGroupBlockTable`, and V2's `BlockTables` (written and gathered by Triton kernels).
The sizing method of the real runner runs on a stand-in that has what it reads.
"""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock

from invariants.mamba_table_values import Case, Engine

if TYPE_CHECKING:
    import torch

VOCAB_SIZE = 32


class Kernels(Protocol):
    """What runs the tree's kernels on CPU tensors."""

    def window(
        self, module: ModuleType, inputs: "tuple[torch.Tensor, ...]"
    ) -> contextlib.AbstractContextManager[None]:
        """Run the module's kernel that cuts windows out of these inputs."""

    def rows(
        self, modules: tuple[ModuleType, ...], tables: "tuple[torch.Tensor, ...]"
    ) -> contextlib.AbstractContextManager[None]:
        """Run the modules' kernels that find these tables through addresses."""


def accepted(function: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Those of the offered arguments that this release's function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in known}


def v2_missing() -> str:
    """Why this tree's V2 tables cannot be driven without a GPU, "" when they can."""
    from vllm.v1.kv_cache_interface import MambaSpec
    from vllm.v1.worker.gpu import buffer_utils

    if not hasattr(MambaSpec, "max_num_blocks_per_req"):
        return "V2 runner: no Mamba support in this tree"
    if not hasattr(buffer_utils, "NonUvaBuffer"):
        return "V2 runner: its buffers need pinned memory in this tree"
    return ""


class V1Rows:
    """The persistent batch of the V1 runner (vllm/v1/worker/gpu_input_batch.py)."""

    def __init__(
        self, case: Case, engine: Engine, config: Any, vllm_config: SimpleNamespace
    ) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        runner = _v1_runner_before_sizing(case, engine, vllm_config)
        resize = GPUModelRunner.may_reinitialize_input_batch
        resize(
            runner,
            **accepted(
                resize,
                kv_cache_config=config,
                kernel_block_sizes=_kernel_block_sizes(case, engine),
            ),
        )
        self._batch = runner.input_batch
        runner.kv_cache_config = config
        # A decode of one token and all drafts (`GDNAttentionMetadataBuilder`).
        runner.reorder_batch_threshold = 1 + case.num_speculative_blocks
        self._reorder = partial(GPUModelRunner._may_reorder_batch, runner)  # noqa: SLF001
        self._mamba_group = len(engine.attention_block_sizes)

    @property
    def columns(self) -> int:
        """Columns of the Mamba group's table."""
        table = self._batch.block_table[self._mamba_group].block_table
        return int(table.cpu.shape[1])

    def row(self, request_id: str) -> int:
        """Row of a running request in the current batch."""
        return int(self._batch.req_id_to_index[request_id])

    def add(self, request: Any, block_ids: tuple[list[int], ...]) -> None:
        """A request joins the batch with all its blocks."""
        from vllm.v1.worker.gpu_input_batch import CachedRequestState

        self._batch.add_request(
            CachedRequestState(
                req_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                mm_features=[],
                sampling_params=request.sampling_params,
                generator=None,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
                output_token_ids=list(request.output_token_ids),
            )
        )

    def append(self, request_id: str, new_ids: tuple[list[int], ...]) -> None:
        """A running request gets more blocks."""
        self._batch.block_table.append_row(new_ids, self.row(request_id))

    def remove(self, request_id: str) -> None:
        """A request leaves the batch; `settle` must follow."""
        self._batch.remove_request(request_id)

    def settle(self, scheduled: dict[str, tuple[int, int]]) -> None:
        """Close the holes of removed requests, then put decodes first.

        In the order of `GPUModelRunner._update_states`.

        Args:
            scheduled: By request ID, the tokens computed before the step and those of
                the step.
        """
        for request_id, (computed, _) in scheduled.items():
            self._batch.num_computed_tokens_cpu[self.row(request_id)] = computed
        self._batch.condense()
        if scheduled:
            tokens = {
                request_id: of_step for request_id, (_, of_step) in scheduled.items()
            }
            self._reorder(SimpleNamespace(num_scheduled_tokens=tokens))
        self._batch.refresh_metadata()

    def table(self, *, rows: int, padded: int) -> "torch.Tensor":
        """``[padded, columns]`` int32 of the Mamba group, as metadata builders get it.

        Rows that a CUDA graph adds hold the null block (`_get_block_table`).
        """
        self._batch.block_table.commit_block_table(rows)
        table: torch.Tensor = self._batch.block_table[
            self._mamba_group
        ].get_device_tensor(padded)
        table[rows:padded].fill_(0)
        return table


def _kernel_block_sizes(case: Case, engine: Engine) -> list[int]:
    """Attention blocks split for their kernels where they divide; Mamba's never."""
    kernel = engine.kernel_block_size
    return [
        *(size if size % kernel else kernel for size in engine.attention_block_sizes),
        case.block_size,
    ]


def _v1_runner_before_sizing(
    case: Case, engine: Engine, vllm_config: SimpleNamespace
) -> SimpleNamespace:
    """A runner as its constructor leaves it: a batch of one placeholder group.

    (`GPUModelRunner.__init__` in vllm/v1/worker/gpu_model_runner.py; 0.28 keeps the
    placeholder's width and slot mapping mode beside its block size.)
    """
    import torch
    from vllm.v1.worker import block_table
    from vllm.v1.worker.gpu_input_batch import InputBatch

    size = vllm_config.cache_config.block_size
    columns = -(-case.max_model_len // size)
    tokens = min(engine.chunk_blocks * case.block_size, case.max_model_len)
    shared = {
        "max_num_reqs": engine.max_num_reqs,
        "device": torch.device("cpu"),
        "pin_memory": False,
        "is_pooling_model": False,
        "num_spec_tokens": case.num_speculative_blocks,
    }
    batch = InputBatch(
        **accepted(
            InputBatch.__init__,
            **shared,
            max_model_len=case.max_model_len,
            max_num_batched_tokens=tokens,
            vocab_size=VOCAB_SIZE,
            block_sizes=[size],
            kernel_block_sizes=[size],
            **_placeholder_columns(InputBatch, columns),
        )
    )
    modes = getattr(block_table, "SlotMappingMode", None)
    return SimpleNamespace(
        **shared,
        max_model_len=case.max_model_len,
        max_encoder_len=0,
        max_num_tokens=tokens,
        vllm_config=vllm_config,
        model_config=vllm_config.model_config,
        cache_config=vllm_config.cache_config,
        parallel_config=vllm_config.parallel_config,
        cp_kv_cache_interleave_size=1,
        input_batch=batch,
        jit_warmup_registry=SimpleNamespace(activate=contextlib.nullcontext),
        _init_block_sizes=[size],
        _init_kernel_block_sizes=[size],
        _init_max_num_blocks=[columns],
        _init_slot_mapping_modes=[modes.TOKEN_TO_KV_SLOT] if modes else [],
    )


def _placeholder_columns(batch: Any, columns: int) -> dict[str, list[int]]:
    """0.20.1 leaves the placeholder's width to its table, later releases give it."""
    width = inspect.signature(batch.__init__).parameters["max_num_blocks_per_req"]
    return (
        {"max_num_blocks_per_req": [columns]}
        if width.default is inspect.Parameter.empty
        else {}
    )


class V2Rows:
    """The request states of the V2 runner (vllm/v1/worker/gpu/block_table.py, 0.33.0).

    A request keeps its state row from start to end; a step gathers the rows of its
    batch. The buffers are those for machines without pinned memory.
    """

    def __init__(
        self,
        case: Case,
        engine: Engine,
        config: Any,
        vllm_config: SimpleNamespace,
        *,
        kernels: Kernels,
    ) -> None:
        from vllm.v1.worker.gpu import buffer_utils

        self._kernels = kernels

        arguments = _v2_table_arguments(case, engine, config, vllm_config)
        from vllm.v1.worker.gpu.block_table import BlockTables

        with mock.patch.object(buffer_utils, "is_uva_available", return_value=False):
            self._tables = BlockTables(**arguments)
        self._mamba_group = len(engine.attention_block_sizes)
        self._free = list(range(engine.max_num_reqs))
        self._states: dict[str, int] = {}

    @property
    def columns(self) -> int:
        """Columns of the Mamba group's table."""
        return int(self._tables.block_tables[self._mamba_group].gpu.shape[1])

    def row(self, request_id: str) -> int:
        """Row of a running request in the current batch: order of arrival."""
        return list(self._states).index(request_id)

    def add(self, request: Any, block_ids: tuple[list[int], ...]) -> None:
        """A request takes a free state row, whatever that held before."""
        state = self._free.pop()
        self._states[request.request_id] = state
        self._tables.append_block_ids(state, block_ids, overwrite=True)

    def append(self, request_id: str, new_ids: tuple[list[int], ...]) -> None:
        """A running request gets more blocks."""
        state = self._states[request_id]
        self._tables.append_block_ids(state, new_ids, overwrite=False)

    def remove(self, request_id: str) -> None:
        """A request gives its state row back."""
        self._free.append(self._states.pop(request_id))

    def _running(self) -> contextlib.AbstractContextManager[None]:
        """Their kernels follow tables of addresses, one per KV-cache group."""
        from vllm.v1.worker.gpu import block_table, buffer_utils

        made = self._tables
        rows = (each.gpu for each in made.block_tables)
        tables = (*rows, *made.input_block_tables)
        return self._kernels.rows((block_table, buffer_utils), tables)

    def settle(self, scheduled: dict[str, tuple[int, int]]) -> None:  # noqa: ARG002
        """Write what was staged (`BlockTables.apply_staged_writes`)."""
        with self._running():
            self._tables.apply_staged_writes()

    def table(self, *, rows: int, padded: int) -> "torch.Tensor":
        """``[padded, columns]`` int32 of the Mamba group; padding rows are zeroed."""
        import torch

        states = torch.tensor(list(self._states.values())[:rows], dtype=torch.int32)
        with self._running():
            tables = self._tables.gather_block_tables(states, num_reqs_padded=padded)
        table: torch.Tensor = tables[self._mamba_group]
        return table


class _TablesSized(Exception):
    """Ends the runner's set-up where it would build its tables."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__("block tables sized")
        self.arguments = arguments


def _v2_table_arguments(
    case: Case, engine: Engine, config: Any, vllm_config: SimpleNamespace
) -> dict[str, Any]:
    """What V2's `GPUModelRunner.initialize_kv_cache` builds its tables from."""
    import torch
    from vllm.v1.worker.gpu import model_runner

    def sized(**arguments: Any) -> None:
        raise _TablesSized(arguments)

    graphs = SimpleNamespace(narrow=lambda *_: None)
    runner = SimpleNamespace(
        vllm_config=vllm_config,
        cache_config=vllm_config.cache_config,
        parallel_config=vllm_config.parallel_config,
        model_config=vllm_config.model_config,
        model_state=SimpleNamespace(
            get_additional_cg_support=lambda: (),
            num_new_sampled_tokens_per_step=1,
        ),
        input_buffers=SimpleNamespace(query_start_loc=None),
        jit_warmup_registry=SimpleNamespace(activate=contextlib.nullcontext),
        is_encoder_decoder=False,
        speculator=None,
        batch_sharder=None,
        req_states=None,
        vocab_size=VOCAB_SIZE,
        dcp_size=1,
        dcp_rank=0,
        max_model_len=case.max_model_len,
        max_num_reqs=engine.max_num_reqs,
        max_num_tokens=case.max_model_len,
        device=torch.device("cpu"),
    )
    with (
        mock.patch.object(model_runner, "BlockTables", sized),
        mock.patch.object(
            model_runner, "init_attn_backend", return_value=([], graphs, [])
        ),
        mock.patch.object(model_runner, "maybe_create_adaptive_verification_manager"),
        mock.patch.object(model_runner, "get_max_chunk_logits", return_value=1),
    ):
        try:
            model_runner.GPUModelRunner.initialize_kv_cache(runner, config)
        except _TablesSized as built:
            return built.arguments
    raise RuntimeError(
        "V2's GPUModelRunner.initialize_kv_cache ended without building BlockTables; "
        "see where this tree sizes them and adapt V2Rows"
    )
