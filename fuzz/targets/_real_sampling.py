"""Correct launches of the kernels that accept drafts and prepare the next step."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from fuzz.targets._real_launch import (
    STALE,
    RealLaunch,
    imported,
    ints,
    longs,
    read_only,
    starts_of,
)
from invariants.memory.regions import Memory

_REJECTION = ("vllm.v1.sample.rejection_sampler",)
_DRAFTS = ("vllm.v1.spec_decode.utils",)
_BATCH = ("vllm.v1.worker.gpu.input_batch",)
# Of Qwen3-Next.
VOCABULARY = 151_936
_SPECULATIVE = 3
# Drafts of each request of a ragged batch; one has none.
_DRAFTED = (3, 0, 1, 3, 2)


def _rejection(memory: Memory, *, random: bool, probabilities: bool) -> None:
    """Greedy requests, or greedy and random ones, with drafts' probabilities or not."""
    module = imported(*_REJECTION)
    tokens, batch = sum(_DRAFTED), len(_DRAFTED)
    drafts = ints(range(tokens))
    logits = torch.zeros(tokens, VOCABULARY)
    # The first three drafts are right.
    logits[[0, 1, 2], [0, 1, 2]] = 9.0
    counts = starts_of(_DRAFTED)[1:].clone()
    bonus = ints(range(batch))[:, None]
    read_only(memory, drafts, logits, counts, bonus)
    likely = None
    if probabilities:
        likely = torch.zeros(tokens, VOCABULARY)
        read_only(memory, likely)
    metadata = SimpleNamespace(
        all_greedy=not random,
        all_random=False,
        generators={},
        temperature=torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]) if random else None,
    )
    out = module.rejection_sample(
        drafts,
        list(_DRAFTED),
        _SPECULATIVE,
        counts,
        likely,
        logits,
        bonus,
        metadata,
    )
    if out[0].tolist() != [0, 1, 2, 0]:
        raise AssertionError(f"three right drafts and the bonus token: {out[0]}")


def _expanded(memory: Memory) -> None:
    """A value of each request for each of its drafts."""
    module = imported(*_REJECTION)
    values, counts = ints(range(5)), starts_of(_DRAFTED)[1:].clone()
    read_only(memory, values, counts)
    made = module.expand_batch_to_tokens(values, counts, sum(_DRAFTED))
    if made.tolist() != [0, 0, 0, 2, 3, 3, 3, 4, 4]:
        raise AssertionError(f"values of drafts: {made.tolist()}")


def _next_tokens(memory: Memory) -> None:
    """The last accepted token of each request, and where the next draft begins."""
    module = imported(*_DRAFTS)
    batch, width = len(_DRAFTED), _SPECULATIVE + 1
    sampled = torch.full((batch, width), -1, dtype=torch.int32)
    for request, accepted in enumerate((4, 1, 1, 2, 0)):
        sampled[request, :accepted] = ints(range(accepted))
    discarded = torch.tensor([False, False, True, False, False])
    backup, chosen = ints(range(100, 105)), torch.empty(batch, dtype=torch.int32)
    valid = torch.empty(batch, dtype=torch.int32)
    counts = starts_of(_DRAFTED)[1:].clone()
    starts = starts_of([drafted + 1 for drafted in _DRAFTED])
    read_only(memory, sampled, discarded, backup, counts, starts)
    module.eagle_prepare_next_token_padded_kernel[(batch,)](
        sampled,
        discarded,
        backup,
        chosen,
        valid,
        VOCABULARY,
        width,
        batch,
        sampled.stride(0),
        BLOCK_SIZE_TOKENS=module.next_power_of_2(width),
    )
    if chosen.tolist() != [3, 0, 102, 1, 104] or valid.tolist() != [4, 1, 0, 2, 0]:
        raise AssertionError(f"next tokens {chosen.tolist()} of {valid.tolist()}")
    sampled_at, rejected = (torch.empty(batch, dtype=torch.int32) for _ in range(2))
    module.eagle_prepare_inputs_padded_kernel[(batch,)](
        counts, valid, starts, sampled_at, rejected, batch
    )
    if rejected.tolist() != [0, 0, 2, 2, 3]:
        raise AssertionError(f"rejected drafts {rejected.tolist()}")


def _batch_inputs(memory: Memory) -> None:
    """V2's preparation of a step: prompts in chunks, decodes, and drafts."""
    module = imported(*_BATCH)
    states, longest, budget = 8, 4096, 2048
    # A long prompt's first chunk, the last one of another, a decode, drafts.
    mapping = ints([5, 2, 7, 0])
    queries, computed = (1500, 64, 1, 4), (0, 1836, 700, 41)
    prompts, logits = (3000, 1900, 20, 30), (1, 1, 1, 4)
    starts, counts = starts_of(queries), starts_of(logits)

    def spread(values: Sequence[int]) -> torch.Tensor:
        whole = torch.full((states,), 0, dtype=torch.int32)
        whole[mapping.long()] = ints(values)
        return whole

    prompt_lens, done = spread(prompts), spread(computed)
    tokens = torch.zeros(states, longest, dtype=torch.int32)
    lookahead = getattr(module, "_prepare_prefill_inputs_kernel", None)
    ahead = "num_lookahead" in lookahead.arg_names if lookahead else False
    following = torch.zeros((2, states) if ahead else (states,), dtype=torch.int32)
    ids = torch.zeros(budget, dtype=torch.int32)
    positions = torch.full((budget,), STALE, dtype=torch.int64)
    lengths = torch.full((states,), STALE, dtype=torch.int32)
    read_only(memory, mapping, starts, counts, prompt_lens, tokens)
    module.prepare_prefill_inputs(
        ids, following, mapping, starts, tokens, prompt_lens, done
    )
    module.prepare_pos_seq_lens(mapping, starts, done, positions, lengths)
    expected = [a + b for a, b in zip(computed, queries, strict=True)]
    if lengths.tolist() != [*expected, 0, 0, 0, 0]:
        raise AssertionError(f"lengths {lengths.tolist()}")
    last = torch.zeros(states, 1, dtype=torch.int32)
    drafts = torch.zeros(states, _SPECULATIVE, dtype=torch.int32)
    module.combine_sampled_and_draft_tokens(
        ids, mapping, last, starts, lengths, prompt_lens, drafts, counts, sum(logits)
    )
    module.expand_idx_mapping(mapping, sum(logits), counts, _SPECULATIVE + 1)
    accepted = ints([1, 1, 1, 2])
    accepted, rejected = module.get_num_sampled_and_rejected(
        accepted, lengths, counts, mapping, prompt_lens
    )
    if accepted.tolist() != [0, 1, 1, 2] or rejected.tolist() != [0, 0, 0, 2]:
        raise AssertionError(f"{accepted.tolist()} accepted, {rejected.tolist()} not")


def _updated(memory: Memory, *, counted: bool) -> None:
    """V2's states after a step; tokens that were sampled are counted, or not."""
    module = imported(*_BATCH)
    states, longest = 8, 4096
    mapping, queries = ints([5, 2, 7, 0]), (1500, 64, 1, 4)
    starts = starts_of(queries)
    sampled = torch.full((4, _SPECULATIVE + 1), -1, dtype=torch.int64)
    for request, count in enumerate((0, 1, 1, 3)):
        sampled[request, :count] = longs([VOCABULARY - 1, 0, 7][:count])
    accepted, rejected = ints([0, 1, 1, 3]), ints([0, 0, 0, 1])
    total = torch.full((states,), longest - 3, dtype=torch.int32)
    read_only(memory, mapping, starts, sampled, accepted, rejected)
    module.post_update(
        mapping,
        torch.zeros(states, dtype=torch.int32),
        torch.zeros(states, 1, dtype=torch.int32),
        torch.zeros(states, VOCABULARY, dtype=torch.int32) if counted else None,
        sampled,
        accepted,
        rejected,
        starts,
        torch.zeros(states, longest, dtype=torch.int32),
        total,
    )
    if total[[5, 2, 7, 0]].tolist() != [longest - 3, longest - 2, longest - 2, longest]:
        raise AssertionError(f"lengths {total.tolist()}")


_AS_WRAPPED = "launched as its caller does, a method of a proposer on a GPU"
_GREEDY = ("rejection_greedy_sample_kernel",)
_RANDOM = (
    _GREEDY,
    ("sample_recovered_tokens_kernel",),
    ("rejection_random_sample_kernel",),
)


def _launch(name: str, module: tuple[str, ...], run: Any, *kernels: str) -> RealLaunch:
    return RealLaunch(
        name=name, module=module, run=run, kernels=tuple((each,) for each in kernels)
    )


LAUNCHES: Sequence[RealLaunch] = (
    _launch(
        "greedy drafts",
        _REJECTION,
        partial(_rejection, random=False, probabilities=False),
        *_GREEDY,
    ),
    *(
        RealLaunch(
            name=f"random drafts, {name} probabilities",
            kernels=_RANDOM,
            module=_REJECTION,
            run=partial(_rejection, random=True, probabilities=probabilities),
        )
        for name, probabilities in (("with", True), ("without", False))
    ),
    _launch("values of each draft", _REJECTION, _expanded, "expand_kernel"),
    RealLaunch(
        name="next tokens of drafts",
        kernels=(
            ("eagle_prepare_next_token_padded_kernel",),
            ("eagle_prepare_inputs_padded_kernel",),
        ),
        module=_DRAFTS,
        run=_next_tokens,
        note=_AS_WRAPPED,
    ),
    _launch(
        "V2 inputs of a step",
        _BATCH,
        _batch_inputs,
        "_prepare_prefill_inputs_kernel",
        "_prepare_pos_seq_lens_kernel",
        "_combine_sampled_and_draft_tokens_kernel",
        "_expand_idx_mapping_kernel",
        "_get_num_sampled_and_rejected_kernel",
    ),
    _launch(
        "V2 states after a step",
        _BATCH,
        partial(_updated, counted=True),
        "_post_update_kernel",
    ),
    _launch(
        "V2 states after a step, nothing counted",
        _BATCH,
        partial(_updated, counted=False),
        "_post_update_kernel",
    ),
)
