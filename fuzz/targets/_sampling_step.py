"""The sampler's states, the requests in them, and one step's rows of logits.

Requests come, are sampled for and end as the model runner has them; tensors of any size
are made without pages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from fuzz.targets._real_launch import accepted, virtual
from fuzz.targets._staged_rows import BUFFERS, LazyZeros, host_buffers
from invariants.memory.regions import Memory, Ownership
from invariants.penalties_case import DRAFTS_MAX, Case, Request

_GPU = "vllm.v1.worker.gpu"
_CPU = torch.device("cpu")
# Names of the states, as attributes of 0.20.1's sampler and as classes.
_STATES = {
    "bias": ("logit_bias_state", "LogitBiasState"),
    "penalties": ("penalties_state", "PenaltiesState"),
    "bad_words": ("bad_words_state", "BadWordsState"),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """What the sampler gets.

    Attributes:
        logits: ``[rows, vocabulary]``; float32, as parts change them in place.
        mapping: ``[rows]``, slot of each.
        local: ``[rows]``, how many drafts of its request come before.
        inputs, positions: ``[rows]``, the token that the row came after, and its place.
    """

    logits: torch.Tensor
    mapping: torch.Tensor
    batch: torch.Tensor
    local: torch.Tensor
    inputs: torch.Tensor
    positions: torch.Tensor


class Served:
    """The requests of a case, in the release's own states."""

    def __init__(self, case: Case) -> None:
        self.case = case
        with LazyZeros():
            states = import_module(f"{_GPU}.states").RequestState
            self.requests = states(
                **accepted(
                    states.__init__,
                    max_num_reqs=case.slots,
                    max_model_len=case.longest,
                    max_num_batched_tokens=2048,
                    num_speculative_steps=DRAFTS_MAX,
                    vocab_size=case.vocabulary,
                    device=_CPU,
                )
            )
            sampler = import_module(f"{_GPU}.sample.sampler").Sampler
            self.sampler = sampler(
                **accepted(
                    sampler.__init__,
                    vllm_config=SimpleNamespace(reasoning_config=None),
                    max_num_reqs=case.slots,
                    vocab_size=case.vocabulary,
                    device=_CPU,
                    req_states=self.requests,
                    num_speculative_tokens=DRAFTS_MAX,
                )
            )

    def state(self, name: str) -> Any:
        """The sampler's state of a part: `bias`, `penalties` or `bad_words`."""
        attribute, kind = _STATES[name]
        if hasattr(self.sampler, attribute):
            return getattr(self.sampler, attribute)
        processors = self.sampler.logits_processors
        return next(each for each in processors if type(each).__name__ == kind)

    def slot(self, name: str) -> int:
        """Of a request that is served."""
        slot: int = self.requests.req_id_to_index[name]
        return slot

    def add(self, name: str, one: Request, tokens: Sequence[int]) -> None:
        """Stage one request: its prompt, and the output that it comes with."""
        held = list(tokens[: one.prompt + one.resumed])
        self.requests.add_request(
            **accepted(
                self.requests.add_request,
                req_id=name,
                prompt_len=one.prompt,
                all_token_ids=held,
                num_computed_tokens=len(held) - 1,
                max_tokens=one.output + 1,
            )
        )
        self.sampler.add_request(
            **accepted(
                self.sampler.add_request,
                req_idx=self.slot(name),
                prompt_len=one.prompt,
                sampling_params=_parameters(one),
            )
        )

    def apply(self) -> None:
        """Apply what is staged, in the model runner's order."""
        with LazyZeros():
            self.requests.apply_staged_writes()
            self.sampler.apply_staged_writes()

    def sampled(self, named: Mapping[str, tuple[Request, Sequence[int]]]) -> None:
        """Tell the states which tokens were sampled since requests were added."""
        states = self.requests
        slots = [self.slot(name) for name in named]
        tokens = torch.full((len(named), DRAFTS_MAX + 1), -1, dtype=torch.int64)
        for row, (one, all_tokens) in enumerate(named.values()):
            first = one.prompt + one.resumed
            new = all_tokens[first : first + one.sampled]
            tokens[row, : len(new)] = torch.tensor(new)
        counts = [one.sampled for one, _ in named.values()]
        import_module(f"{_GPU}.input_batch").post_update(
            torch.tensor(slots, dtype=mapping_dtype()),
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            self.state("penalties").output_bin_counts,
            tokens,
            torch.tensor(counts, dtype=torch.int32),
            torch.zeros(len(named), dtype=torch.int32),
            torch.arange(len(named) + 1, dtype=torch.int32),
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )

    def step(self) -> Step:
        """Rows of the case's batch; their mapping is made by the release's kernel."""
        case = self.case
        batch = torch.tensor(
            [self.slot(str(each)) for each in case.order], dtype=mapping_dtype()
        )
        counts = [case.requests[each].drafts + 1 for each in case.order]
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        mapping, local = import_module(f"{_GPU}.input_batch").expand_idx_mapping(
            batch, sum(counts), starts, DRAFTS_MAX + 1
        )
        inputs, positions = [], []
        for request, drafts in case.rows:
            one = case.requests[request]
            last = one.prompt + one.output + drafts - 1
            positions.append(last)
            inputs.append(case.tokens(request)[last])
        return Step(
            logits=_logits(case),
            mapping=mapping,
            batch=batch,
            local=local,
            inputs=torch.tensor(inputs, dtype=torch.int32),
            positions=torch.tensor(positions, dtype=torch.int64),
        )

    def own(self, memory: Memory, names: Sequence[str]) -> None:
        """Let launches touch the states of some requests' slots only."""
        slots = {self.slot(name) for name in names}
        bins = self.state("penalties")
        tables = [
            self.requests.all_token_ids.gpu,
            bins.prompt_bin_mask,
            bins.output_bin_counts,
        ]
        for part in ("bias", "bad_words"):
            held = vars(self.state(part)).values()
            tables += [
                each.gpu for each in held if hasattr(each, "clear_staged_writes")
            ]
        for table in tables:
            memory.own(table, Ownership.of(table, readable=slots, writable=slots))


@contextmanager
def plain_memory() -> Iterator[None]:
    """Buffers in plain memory, and staged writes that land without a kernel.

    That kernel is another target's; its faults would hide those of this one.
    """
    tensor = import_module(BUFFERS).StagedWriteTensor
    with (
        host_buffers(pinned=True),
        mock.patch.object(tensor, "apply_write", _land),
    ):
        yield


def _land(tensor: Any) -> None:
    """Apply what is staged, write by write."""
    first = 0
    for row, start, end in zip(
        tensor._staged_write_indices,  # noqa: SLF001 - its own record
        tensor._staged_write_starts,  # noqa: SLF001
        tensor._staged_write_cu_lens,  # noqa: SLF001
        strict=True,
    ):
        content = tensor._staged_write_contents[first:end]  # noqa: SLF001
        new = torch.tensor(content, dtype=tensor.gpu.dtype)
        if tensor.gpu.dim() == 1:
            tensor.gpu[row] = new[0]
        else:
            tensor.gpu[row, start : start + len(content)] = new
        first = end
    tensor.clear_staged_writes()


@cache
def mapping_dtype() -> torch.dtype:
    """Of the slots of a batch, as this release's model runner has them."""
    module = import_module(f"{_GPU}.input_batch")
    buffers = module.InputBuffers(
        **accepted(
            module.InputBuffers.__init__, max_num_reqs=1, max_num_tokens=1, device=_CPU
        )
    )
    dtype: torch.dtype = module.InputBatch.make_dummy(1, 1, buffers).idx_mapping.dtype
    return dtype


def _parameters(one: Request) -> Any:
    """Real parameters of a request; its words are said in tokens."""
    made = import_module("vllm.sampling_params").SamplingParams(
        repetition_penalty=one.repetition,
        frequency_penalty=one.frequency,
        presence_penalty=one.presence,
        logit_bias=dict(one.bias) or None,
        allowed_token_ids=list(one.allowed) or None,
        min_tokens=one.min_tokens,
        max_tokens=2**20,
        stop_token_ids=list(one.stops),
        temperature=one.temperature,
        min_p=one.min_p,
    )
    made._bad_words_token_ids = [list(word) for word in one.bad_words]  # noqa: SLF001
    return made


def _logits(case: Case) -> torch.Tensor:
    """``[rows, vocabulary]`` float32 between -8 and 8, some equal, some banned."""
    rows = len(case.rows)
    size = (rows - 1) * case.row_stride + case.vocabulary
    logits = virtual((size,), torch.float32).as_strided(
        (rows, case.vocabulary), (case.row_stride, 1)
    )
    generator = torch.Generator().manual_seed(case.seed)
    drawn = torch.randint(-512, 513, (rows, case.vocabulary), generator=generator)
    logits.copy_(drawn / 64)
    logits[:, 2::97] = float("-inf")
    return logits


def parts_of(served: Served, step: Step) -> dict[str, Callable[[], torch.Tensor]]:
    """What applies each part to the step's logits, and the sampler's whole."""
    slots = step.batch.numpy()
    sampling = served.sampler.sampling_states
    given = {
        "logits": step.logits,
        "expanded_idx_mapping": step.mapping,
        "idx_mapping": step.batch,
        "idx_mapping_np": slots,
        "pos": step.positions,
        "input_ids": step.inputs,
        "expanded_local_pos": step.local,
        "seq_lens_upper_bound_np": step.positions.numpy() + 1,
        "num_speculative_tokens": DRAFTS_MAX,
    }

    def whole() -> torch.Tensor:
        apply = served.sampler.apply_sampling_params
        made: torch.Tensor = apply(**accepted(apply, **given))
        return made

    def one(state: Any, name: str) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            if hasattr(state, "apply"):
                context = import_module(f"{_GPU}.sample.logits_processor.interface")
                offered = accepted(context.LogitsContext, **given)
                state.apply(step.logits, context.LogitsContext(**offered))
            else:
                apply = getattr(state, name)
                apply(**accepted(apply, **given))
            return step.logits

        return call

    return {
        "all": whole,
        "bias": one(served.state("bias"), "apply_logit_bias"),
        "penalties": one(served.state("penalties"), "apply_penalties"),
        "bad_words": one(served.state("bad_words"), "apply_bad_words"),
        "temperature": one(sampling, "apply_temperature"),
        "min_p": one(sampling, "apply_min_p"),
    }


def packed(tokens: set[int], words: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """``[words]``: bit `token % 32` of word `token // 32` says that it occurs."""
    bits = np.zeros(words, dtype=np.uint32)
    for token in tokens:
        bits[token // 32] |= np.uint32(1 << token % 32)
    return bits.view(np.int32)
