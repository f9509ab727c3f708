"""V2's input batch on a step: its functions in the order of the model runner."""

from importlib import import_module
from typing import Any

import torch

from fuzz.targets._draft_tensors import Tensors
from fuzz.targets._real_launch import virtual
from invariants.draft_inputs_case import VOCABULARY, Case
from invariants.draft_inputs_model import (
    UNTOUCHED,
    known_tokens,
    last_sampled,
    shown_tokens,
)

_LOOKAHEAD = 2


def _batch() -> Any:
    return import_module("vllm.v1.worker.gpu.input_batch")


def _state(
    case: Case, tensors: Tensors, name: str, values: list[int], *, writable: bool = True
) -> torch.Tensor:
    """``[states]`` int32, untouched but for the step's requests."""
    whole = torch.full((case.states,), UNTOUCHED, dtype=torch.int32)
    whole[list(case.mapping)] = torch.tensor(values, dtype=torch.int32)
    return tensors.state(name, whole, case.mapping, writable=writable)


def _tokens(case: Case, tensors: Tensors, *, writable: bool) -> torch.Tensor:
    """``[states, longest]`` int32, of which only what is read or stored to exists."""
    tokens = virtual((case.states, case.longest), torch.int32)
    tensors.state("all_token_ids", tokens, case.mapping, writable=writable, whole=False)
    return tokens


def inputs(case: Case, tensors: Tensors) -> str | None:
    """Index mappings, tokens of prompts, positions and lengths, drafts."""
    batch = _batch()
    combine = batch.combine_sampled_and_draft_tokens
    if any(each.tail for each in case.requests) and (
        "NUM_NEW_SAMPLED_TOKENS" not in _names(batch)
    ):
        return "this release has no drafts behind a prompt's last tokens"
    count, mapping = len(case.requests), tensors.given(case.mapping)
    starts = tensors.given(case.starts)
    logits = [each.drafts + 1 for each in case.requests]
    ends = torch.tensor([0, *logits]).cumsum(0).tolist()
    cumulated = tensors.given(ends)
    expanded, local = batch.expand_idx_mapping(
        mapping, sum(logits), cumulated, case.steps + 1
    )
    tokens = _tokens(case, tensors, writable=False)
    for at, (state, each) in enumerate(zip(case.mapping, case.requests, strict=True)):
        last = min(each.length + _LOOKAHEAD, case.longest)
        for position in range(each.context, last):
            tokens[state, position] = case.token(at, position)
    prompts = [each.prompt for each in case.requests]
    prompt_lens = _state(case, tensors, "prefill_len", prompts, writable=False)
    contexts = [each.context for each in case.requests]
    computed = _state(case, tensors, "num_computed", contexts, writable=False)
    ahead = "num_lookahead" in batch._prepare_prefill_inputs_kernel.arg_names  # noqa: SLF001
    shape = (_LOOKAHEAD, case.states) if ahead else (case.states,)
    following = torch.full(shape, UNTOUCHED, dtype=torch.int32)
    ids = tensors.output("input_ids", case.starts[-1])
    positions = tensors.output("positions", case.starts[-1], torch.int64)
    lengths = torch.full((case.states,), UNTOUCHED, dtype=torch.int32)
    if any(each.context < each.prompt for each in case.requests):
        batch.prepare_prefill_inputs(
            ids, following, mapping, starts, tokens, prompt_lens, computed
        )
    batch.prepare_pos_seq_lens(mapping, starts, computed, positions, lengths)
    lasts = [last_sampled(case, at) for at in range(count)]
    sampled = _state(case, tensors, "last_sampled", lasts, writable=False)
    drafts = torch.full((case.states, case.steps), UNTOUCHED, dtype=torch.int32)
    for at, state in enumerate(case.mapping):
        own = case.draft_tokens(at)
        drafts[state, : len(own)] = torch.tensor(own, dtype=torch.int32)
    tensors.state("draft_tokens", drafts, case.mapping, writable=False)
    indices = combine(
        *(ids, mapping, sampled[:, None], starts, lengths, prompt_lens, drafts),
        cumulated,
        sum(logits),
    )
    tensors.see("seq_lens", lengths)
    tensors.see("logits_indices", indices)
    tensors.see("expanded_idx_mapping", expanded)
    tensors.see("expanded_local_pos", local)
    row = following[0] if ahead else following
    tensors.see("next_prefill_tokens", row[list(case.mapping)])
    return None


def _names(batch: Any) -> list[str]:
    names: list[str] = batch._combine_sampled_and_draft_tokens_kernel.arg_names  # noqa: SLF001
    return names


def update(case: Case, tensors: Tensors) -> str | None:
    """What was sampled and rejected, then every state after the step."""
    batch = _batch()
    count, mapping = len(case.requests), tensors.given(case.mapping)
    rows = list(case.mapping)
    logits = [each.drafts + 1 for each in case.requests]
    ends = torch.tensor([0, *logits]).cumsum(0).tolist()
    sampled_ids = torch.full((count, case.steps + 1), -1, dtype=torch.int64)
    for at in range(count):
        own = case.sampled_tokens(at) or (case.token(at, 0),)
        sampled_ids[at, : len(own)] = torch.tensor(own)
    tensors.memory.read_only(sampled_ids)
    prompts = [each.prompt for each in case.requests]
    # A chunk's row samples a token too, which does not count.
    sampled, rejected = batch.get_num_sampled_and_rejected(
        torch.tensor([each.accepted + 1 for each in case.requests], dtype=torch.int32),
        tensors.given(each.length for each in case.requests),
        tensors.given(ends),
        mapping,
        _state(case, tensors, "prefill_len", prompts, writable=False),
    )
    contexts = [each.context for each in case.requests]
    computed = _state(case, tensors, "num_computed", contexts)
    lasts = _state(case, tensors, "last_sampled", [UNTOUCHED] * count)
    known = [known_tokens(case, at) for at in range(count)]
    total = _state(case, tensors, "total_len", known)
    counts = torch.full((case.states, VOCABULARY), UNTOUCHED, dtype=torch.int32)
    counts[rows] = 0
    tensors.state("output_bin_counts", counts, rows)
    tokens = _tokens(case, tensors, writable=True)
    windows = [
        (state, slice(first, first + shown_tokens(case, at)))
        for at, (state, first) in enumerate(zip(rows, known, strict=True))
    ]
    for state, window in windows:
        tokens[state, window] = UNTOUCHED
    batch.post_update(
        *(mapping, computed, lasts[:, None], counts, sampled_ids, sampled, rejected),
        tensors.given(case.starts),
        tokens,
        total,
    )
    tensors.see("num_sampled", sampled)
    tensors.see("num_rejected", rejected)
    tensors.see("num_computed_tokens", computed[rows])
    tensors.see("last_sampled_tokens", lasts[rows])
    tensors.see("total_len", total[rows])
    tensors.see("output_bin_counts", counts[rows])
    shown = [tokens[state, window] for state, window in windows]
    tensors.see("all_token_ids", torch.cat(shown))
    return None
