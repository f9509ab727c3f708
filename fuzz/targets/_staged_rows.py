"""Tensors with staged writes, what owns them, and the rows that they must have.

Tensors of any size are made without pages. Rows that are written, and those beside
them, are filled before their first write, and compared after each batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from fuzz.targets._real_launch import accepted, virtual
from fuzz.targets._real_tables import plain_buffers
from invariants.memory.regions import Memory, Ownership
from invariants.staged_writes import Mismatch
from invariants.staged_writes_case import DIMS, TILE, UNWRITTEN, Batch, Case, written

BUFFERS = "vllm.v1.worker.gpu.buffer_utils"
_STATES = "vllm.v1.worker.gpu.states"
_ROPE = "vllm.v1.worker.gpu.mm.rope"
# Larger ones get no pages until they are touched.
_DENSE_MAX = 2**16
_BEFORE = 8
# Of each request: channels of its positions lie this far apart, its prompt is so much
# shorter than what it has when it is added.
_CHANNEL = 2**20
_DELTA = 11
_VOCABULARY = 2**18
_CPU = torch.device("cpu")


class LazyZeros(TorchFunctionMode):
    """`torch.zeros` fills its memory; tables of gigabytes would fill the machine.

    Nothing can be pinned without a GPU, and nothing needs to be.
    """

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {**(kwargs or {})}
        given.pop("pin_memory", None)
        if func is torch.zeros:
            shape = args if isinstance(args[0], int) else args[0]
            if torch.Size(shape).numel() > _DENSE_MAX:
                return virtual(shape, given["dtype"])
        return func(*args, **given)


def _available() -> bool:
    return True


@contextmanager
def host_buffers(*, pinned: bool) -> Iterator[None]:
    """Buffers in plain memory, said to be pinned or not where the release asks."""
    buffers = import_module(BUFFERS)
    if pinned and hasattr(buffers, "NonUvaBuffer"):
        plain = import_module("vllm.v1.worker.cpu.buffer_utils").UvaBuffer
        with (
            mock.patch.object(buffers, "is_uva_available", _available),
            mock.patch.object(buffers, "UvaBuffer", plain),
        ):
            yield
        return
    with plain_buffers():
        yield


@dataclass(frozen=True, kw_only=True)
class Staged:
    """One write that was staged.

    Attributes:
        name: Of the tensor, for messages.
        tensor: The `StagedWriteTensor`.
    """

    name: str
    tensor: Any
    row: int
    start: int
    content: list[int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Owner:
    """What stages a case's batches.

    Attributes:
        tensors: By name, the case's own first.
        stage: Stages a batch, by its number.
        apply: Applies what is staged.
        clear: Forgets what is staged.
        besides: What else the owner has after a batch: names, rows, and numbers found
            and expected.
    """

    tensors: dict[str, Any]
    stage: Callable[[int], list[Staged]]
    apply: Callable[[], None]
    clear: Callable[[], None]
    besides: Callable[[], list[tuple[str, int, int, int]]]
    reused: Callable[[], bool]


def tensors_of(case: Case, memory: Memory) -> Owner:
    """The tensors alone, applied one by one or, where a release can, at once."""
    with LazyZeros():
        made = [
            import_module(BUFFERS).StagedWriteTensor(
                (case.rows, columns) if columns else case.rows,
                dtype=getattr(torch, case.dtype),
                device=_CPU,
                uva_instead_of_gpu=case.pinned,
            )
            for columns in case.columns
        ]
    inputs_only(memory, made)

    def stage(number: int) -> list[Staged]:
        staged = []
        for at, write in enumerate(case.batches[number].writes):
            content = case.content(number, at)
            tensor = made[write.tensor]
            if write.length == 1 and not write.start and not case.columns[write.tensor]:
                tensor.stage_write_elem(write.row, content[0])
            else:
                tensor.stage_write(write.row, write.start, content)
            staged.append(
                Staged(
                    name=str(write.tensor),
                    tensor=tensor,
                    row=write.row,
                    start=write.start,
                    content=content,
                )
            )
        return staged

    def apply_each() -> None:
        for tensor in made:
            tensor.apply_write()

    def clear() -> None:
        for tensor in made:
            tensor.clear_staged_writes()

    return Owner(
        tensors={str(at): tensor for at, tensor in enumerate(made)},
        stage=stage,
        apply=_at_once(case, made, memory) or apply_each,
        clear=clear,
        besides=list,
        reused=lambda: False,
    )


def inputs_only(memory: Memory, tensors: list[Any]) -> None:
    """Say that no launch may store to what tells it rows, starts and lengths."""
    for tensor in tensors:
        for pool in (tensor.write_indices, tensor.write_starts, tensor.write_cu_lens):
            for buffer in pool._uva_bufs:  # noqa: SLF001 - the kernel's own inputs
                memory.read_only(buffer.cpu)


def _at_once(case: Case, made: list[Any], memory: Memory) -> Callable[[], None] | None:
    """One launch for all tensors, as 0.33.0's block tables are written."""
    writer = getattr(import_module(BUFFERS), "FusedStagedWriter", None)
    if case.form != "tensors" or writer is None:
        return None
    fused = writer(_CPU, len(made) * case.rows)
    pointers = torch.tensor([t.gpu.data_ptr() for t in made], dtype=torch.uint64)
    strides = torch.tensor([t.gpu.stride(0) for t in made], dtype=torch.int64)
    memory.read_only(pointers)
    memory.read_only(strides)
    return lambda: fused.apply(made, pointers, strides)


def requests_of(case: Case, memory: Memory) -> Owner:
    """`RequestState`, and `RopeState` beside it where the case is about positions."""
    with LazyZeros():
        states, rope = _states(case)
    tensors = {
        "all_token_ids": states.all_token_ids,
        "total_len": states.total_len,
        "num_computed_tokens": states.num_computed_tokens,
    }
    if rope is not None:
        tensors = {"prefill_positions": rope.prefill_positions, **tensors}
    inputs_only(memory, list(tensors.values()))
    stage = _Requests(case=case, states=states, rope=rope)

    def apply() -> None:
        states.apply_staged_writes()
        if rope is not None:
            rope.apply_staged_writes()

    return Owner(
        tensors=tensors,
        stage=stage.stage,
        apply=apply,
        clear=lambda: None,
        besides=stage.besides,
        reused=lambda: stage.reused,
    )


def _states(case: Case) -> tuple[Any, Any]:
    """States of requests, and their positions or None."""
    states = import_module(_STATES).RequestState(
        **accepted(
            import_module(_STATES).RequestState.__init__,
            max_num_reqs=case.rows,
            max_model_len=case.width,
            max_num_batched_tokens=4 * TILE,
            num_speculative_steps=2,
            vocab_size=_VOCABULARY,
            device=_CPU,
        )
    )
    if case.form != "positions":
        return states, None
    rope = import_module(_ROPE).RopeState(
        **accepted(
            import_module(_ROPE).RopeState.__init__,
            num_dims=DIMS,
            has_delta=True,
            max_num_reqs=case.rows,
            max_num_tokens=4 * TILE,
            max_model_len=case.width,
            device=_CPU,
        )
    )
    return states, rope


@dataclass(eq=False, kw_only=True)
class _Requests:
    """Ends and adds the requests of a case's batches, as the model runner does."""

    case: Case
    states: Any
    rope: Any
    reused: bool = False
    _lengths: dict[int, tuple[int, int]] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)

    def stage(self, number: int) -> list[Staged]:
        batch: Batch = self.case.batches[number]
        for request in batch.finished:
            self._end(request)
        staged = []
        for at, write in enumerate(batch.writes):
            # One that is served already comes anew with more of its prompt.
            self._end(write.row)
            tokens = self.case.content(number, at)
            staged += self._add(write.row, tokens, computed=write.start)
        return staged

    def _end(self, request: int) -> None:
        self.states.remove_request(str(request))
        self._lengths.pop(request, None)

    def _add(self, request: int, tokens: list[int], *, computed: int) -> list[Staged]:
        prompt = max(len(tokens) - request, 1)
        self.states.add_request(
            **accepted(
                self.states.add_request,
                req_id=str(request),
                prompt_len=prompt,
                all_token_ids=tokens,
                num_computed_tokens=computed,
                max_tokens=1,
            )
        )
        row = self.states.req_id_to_index[str(request)]
        self.reused |= self._rows.get(row, request) != request
        self._rows[row] = request
        self._lengths[request] = (prompt, len(tokens))
        numbers = {
            "total_len": [len(tokens)],
            "all_token_ids": tokens,
            "num_computed_tokens": [computed],
        }
        staged = [
            Staged(
                name=name,
                tensor=getattr(self.states, name),
                row=row,
                start=0,
                content=content,
            )
            for name, content in numbers.items()
        ]
        if self.rope is None:
            return staged
        channels = [[each + at * _CHANNEL for each in tokens] for at in range(DIMS)]
        model = SimpleNamespace(
            get_mrope_input_positions=lambda *_: (torch.tensor(channels), _DELTA)
        )
        with mock.patch.object(import_module(_ROPE), "cast", lambda _, value: value):
            self.rope.init_prefill_positions(row, model, tokens, [])
        return staged + [
            Staged(
                name="prefill_positions",
                tensor=self.rope.prefill_positions,
                row=DIMS * row + at,
                start=0,
                content=channel,
            )
            for at, channel in enumerate(channels)
        ]

    def besides(self) -> list[tuple[str, int, int, int]]:
        found = []
        for request, (prompt, length) in self._lengths.items():
            row = self.states.req_id_to_index[str(request)]
            for name, expected in (("prompt_len", prompt), ("prefill_len", length)):
                got = int(getattr(self.states, name).gpu[row])
                found.append((name, row, got, expected))
            if self.rope is not None:
                got = int(self.rope.prefill_delta.gpu[row])
                found.append(("prefill_delta", row, got, _DELTA))
        return found


@dataclass(eq=False, kw_only=True)
class Rows:
    """What rows must have, within the columns that the case writes to."""

    case: Case
    tops: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _views: dict[str, torch.Tensor] = field(default_factory=dict)

    def _columns(self, name: str) -> slice:
        width = self._views[name].shape[1]
        writes = [each for batch in self.case.batches for each in batch.writes]
        if self.case.origin == "wired":
            longest = max(each.length for each in writes)
            return slice(0, min(longest + TILE, width))
        own = [each for each in writes if str(each.tensor) == name]
        first, last = min(each.start for each in own), max(each.end for each in own)
        return slice(max(first - _BEFORE, 0), min(last + TILE, width))

    def expect(self, staged: list[Staged], *, cleared: bool) -> None:
        """Fill rows that are new, and write what is staged into the lists."""
        for each in staged:
            gpu = each.tensor.gpu
            view = gpu if gpu.dim() > 1 else gpu[:, None]
            self._views[each.name] = view
            columns = self._columns(each.name)
            for row in (each.row - 1, each.row, each.row + 1):
                if 0 <= row < len(view) and (each.name, row) not in self._known:
                    view[row, columns] = UNWRITTEN
                    filler = [UNWRITTEN] * len(view[row, columns])
                    self._known[each.name, row] = filler
            if each.content and not cleared:
                self.tops[each.name] = max(self.tops.get(each.name, -1), each.row)
                start = each.start - columns.start
                before = self._known[each.name, each.row]
                after = written(before, start, each.content)
                self._known[each.name, each.row] = after

    def first_wrong(self, number: int) -> Mismatch | None:
        """The first element that is another one after a batch."""
        for (name, row), expected in self._known.items():
            view = self._views[name]
            columns = self._columns(name)
            got = view[row, columns].tolist()
            if got == expected:
                continue
            at = next(at for at, one in enumerate(got) if one != expected[at])
            return Mismatch(
                batch=number,
                tensor=name,
                row=row,
                column=columns.start + at,
                got=str(got[at]),
                expected=str(expected[at]),
            )
        return None


def own_rows(memory: Memory, owner: Owner, staged: list[Staged]) -> None:
    """Let launches store to the rows of what is staged, and to no others."""
    rows: dict[str, set[int]] = {name: set() for name in owner.tensors}
    for each in staged:
        if each.content:
            rows[each.name].add(each.row)
    for name, tensor in owner.tensors.items():
        memory.own(
            tensor.gpu,
            Ownership.of(tensor.gpu, readable=(), writable=rows[name]),
        )
        memory.table(tensor.gpu, name=f"tensor {name}")
