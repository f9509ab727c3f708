"""V1's proposer on a step: methods of the real class, on what they read of it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fuzz.targets._chance import Chance
from fuzz.targets._draft_tensors import Tensors
from fuzz.targets._real_launch import STALE, accepted
from invariants.draft_inputs_case import PARALLEL, VOCABULARY, Case
from invariants.draft_inputs_model import backup

_HIDDEN = 2


def _proposer() -> Any:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    return SpecDecodeBaseProposer


def _attention(case: Case, tensors: Tensors, table: torch.Tensor | None) -> Any:
    """The attention metadata of the step, as far as a proposer reads them."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    lengths = [each.length for each in case.requests]
    starts = tensors.given(case.starts)
    if table is None:
        table = torch.full((len(lengths), 1), STALE, dtype=torch.int32)
    return CommonAttentionMetadata(
        **accepted(
            CommonAttentionMetadata,
            query_start_loc=starts,
            query_start_loc_cpu=starts.clone(),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            num_reqs=len(lengths),
            num_actual_tokens=case.starts[-1],
            max_query_len=max(each.query for each in case.requests),
            max_seq_len=max(lengths),
            block_table_tensor=table,
            slot_mapping=torch.full((case.starts[-1],), STALE, dtype=torch.int64),
        )
    )


def _table(case: Case, tensors: Tensors) -> torch.Tensor:
    return tensors.given(each for row in case.blocks for each in row).view(
        len(case.requests), -1
    )


def next_tokens(case: Case, tensors: Tensors) -> None:
    """`prepare_next_token_ids_padded`, then `prepare_inputs_padded`."""
    count, width = len(case.requests), case.steps + 1
    rows = []
    for at in range(count):
        # A chunk's row holds a token that nobody asked for.
        sampled = case.sampled_tokens(at) or (case.token(at, 0),)
        rows.append([*sampled, *[-1] * (width - len(sampled))])
    discarded = tensors.given(
        (each.partial for each in case.requests), dtype=torch.bool
    )
    backups = torch.zeros(count, dtype=torch.int32)
    tensors.memory.read_only(backups)
    proposer = SimpleNamespace(
        backup_next_token_ids=SimpleNamespace(
            np=backups.numpy(), gpu=backups, copy_to_gpu=lambda _count: None
        )
    )
    known = {
        str(at): SimpleNamespace(get_token_id=lambda _, at=at: backup(case, at))
        for at in range(count)
    }
    batch = SimpleNamespace(
        num_reqs=count,
        req_ids=list(known),
        num_tokens_no_spec=np.array([each.prompt for each in case.requests]),
        vocab_size=VOCABULARY,
    )
    sampled_ids = tensors.given(each for row in rows for each in row).view(count, width)
    real = _proposer()
    with Chance(tensors.memory):
        chosen, valid = real.prepare_next_token_ids_padded(
            *(proposer, sampled_ids, known, batch, discarded)
        )
        ends = np.cumsum([each.drafts for each in case.requests])
        _, places, rejected = real.prepare_inputs_padded(
            proposer,
            _attention(case, tensors, None),
            SimpleNamespace(cu_num_draft_tokens=tensors.given(ends.tolist())),
            valid,
        )
    tensors.see("next_token_ids", chosen)
    tensors.see("valid_sampled_tokens_count", valid)
    tensors.see("token_indices_to_sample", places)
    tensors.see("num_rejected_tokens", rejected)


def step(case: Case, tensors: Tensors) -> None:
    """`eagle_step_update_slot_mapping_and_metadata` as the proposer calls it."""
    from vllm.v1.spec_decode import utils

    count = len(case.requests)
    lengths = tensors.output("seq_lens", count)
    lengths[:count] = torch.tensor([each.length for each in case.requests])
    utils.eagle_step_update_slot_mapping_and_metadata(
        positions_1d=tensors.given(
            (each.length - 1 for each in case.requests), dtype=torch.int64
        ),
        block_table_tensor=_table(case, tensors),
        seq_lens=lengths[:count],
        block_size=case.block_size,
        max_model_len=case.longest,
        out_clamped_positions=tensors.output("positions", count, torch.int64)[:count],
        out_slot_mapping=tensors.output("slot_mapping", case.padded, torch.int64)[
            : case.padded
        ],
        input_batch_size=case.padded,
    )


def expand(case: Case, tensors: Tensors) -> None:
    """`set_inputs_first_pass` of a drafter that needs slots of its own."""
    count = len(case.requests)
    total = case.starts[-1] + count * case.net_extra
    proposer = SimpleNamespace(
        use_heterogeneous_vocab=False,
        needs_extra_input_slots=True,
        extra_slots_per_request=case.extra,
        net_num_new_slots_per_request=case.net_extra,
        parallel_drafting_token_id=PARALLEL,
        pass_hidden_states_to_model=case.shifted,
        parallel_drafting_hidden_state_tensor=torch.zeros(_HIDDEN),
        device=torch.device("cpu"),
        input_ids=tensors.output("input_ids", total),
        positions=tensors.output("positions", total, torch.int64),
        is_rejected_token_mask=tensors.output("is_rejected", total, torch.bool),
        is_masked_token_mask=tensors.output("is_masked", total, torch.bool),
        block_size=case.block_size,
        max_model_len=case.longest,
        arange=torch.arange(count + 1, dtype=torch.int32),
    )
    tokens = tensors.given(
        case.token(at, each.context + j)
        for at, each in enumerate(case.requests)
        for j in range(each.query)
    )
    positions = tensors.given(
        (each.context + j for each in case.requests for j in range(each.query)),
        dtype=torch.int64,
    )
    following = tensors.given(
        (*case.sampled_tokens(at)[-1:], backup(case, at))[0] for at in range(count)
    )
    mappings: list[torch.Tensor] = []
    proposer.hidden_states = _scattered(mappings, total)
    with Chance(tensors.memory):
        _, places, metadata = _proposer().set_inputs_first_pass(
            proposer,
            target_token_ids=tokens,
            next_token_ids=following,
            target_positions=positions,
            target_hidden_states=torch.zeros(case.starts[-1], _HIDDEN),
            token_indices_to_sample=None,
            cad=_attention(case, tensors, _table(case, tensors)),
            num_rejected_tokens_gpu=tensors.given(
                each.rejected for each in case.requests
            ),
        )
    tensors.see("token_indices_to_sample", places)
    tensors.see("slot_mapping", metadata.slot_mapping)
    tensors.see("query_start_loc", metadata.query_start_loc)
    tensors.see("seq_lens", metadata.seq_lens)
    if case.shifted:
        tensors.see("hidden_state_mapping", mappings[0])


def _scattered(rows: list[torch.Tensor], total: int) -> torch.Tensor:
    """``[total, hidden]`` that tells which rows are stored to, in the order given."""

    class Scattered(torch.Tensor):
        def __setitem__(self, key: Any, value: Any) -> None:
            rows.append(key.clone())
            super().__setitem__(key, value)

    return torch.zeros(total, _HIDDEN).as_subclass(Scattered)
