"""Faults planted in what makes the next step's inputs."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

V1 = ("vllm.v1.spec_decode.utils",)
V2 = ("vllm.v1.worker.gpu.input_batch",)
NEXT = "eagle_prepare_next_token_padded_kernel"
PLACES = "eagle_prepare_inputs_padded_kernel"
STEP = "eagle_step_slot_mapping_metadata_kernel"
EXPAND = "copy_and_expand_eagle_inputs_kernel"
PROMPTS = "_prepare_prefill_inputs_kernel"
POSITIONS = "_prepare_pos_seq_lens_kernel"
COMBINED = "_combine_sampled_and_draft_tokens_kernel"
COUNTED = "_get_num_sampled_and_rejected_kernel"
UPDATED = "_post_update_kernel"
EXPANDED = "_expand_idx_mapping_kernel"
_ANY = (
    *("DRAFT-INPUTS-VALUES", "DRAFT-INPUTS-KEEPS"),
    *("DRAFT-INPUTS-OWNED", "DRAFT-INPUTS-STORES"),
)


def _mutant(
    name: str,
    function: str,
    old: str,
    new: str,
    *invariants: str,
    origin: Origin = "wired",
    cases: int = 200,
) -> Mutant:
    edit = SourceEdit(
        modules=V2 if function.startswith("_") else V1,
        function=function,
        old=old,
        new=new,
    )
    return Mutant(
        name=name,
        origin=origin,
        edits=(edit,),
        invariants=invariants or _ANY,
        cases=cases,
        size=900,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "a discarded request counts what it sampled",
        NEXT,
        "    if is_discarded:",
        "    if is_discarded and req_idx < 0:",
        "DRAFT-INPUTS-VALUES",
    ),
    _mutant(
        "drafts counted from the first request on",
        PLACES,
        "num_draft_tokens = cu_draft_curr - cu_draft_prev",
        "num_draft_tokens = cu_draft_curr",
        "DRAFT-INPUTS-VALUES",
    ),
    _mutant(
        "one token past the longest request",
        STEP,
        "exceeds_max = new_position >= max_model_len",
        "exceeds_max = new_position > max_model_len",
        "DRAFT-INPUTS-VALUES",
        "DRAFT-INPUTS-OWNED",
    ),
    _mutant(
        "rows of padding keep stale slots",
        STEP,
        "        tl.store(out_slot_mapping_ptr + req_idx, PAD_ID)\n        return",
        "        return",
        "DRAFT-INPUTS-VALUES",
    ),
    _mutant(
        "rejected drafts are not marked",
        EXPAND,
        "num_rejected = next_query_start_loc - query_end_loc - 1",
        "num_rejected = 0 * next_query_start_loc",
    ),
    _mutant(
        "tokens that are not shifted",
        EXPAND,
        "in_idx = query_start_loc + input_offset + j",
        "in_idx = query_start_loc + j",
        "DRAFT-INPUTS-VALUES",
    ),
    _mutant(
        "a prompt's tokens from its beginning",
        PROMPTS,
        "tl.load(request_ptr + num_computed + block, mask=mask)",
        "tl.load(request_ptr + block, mask=mask)",
        "DRAFT-INPUTS-VALUES",
    ),
    _mutant(
        "lengths by the row of the batch",
        POSITIONS,
        "tl.load(num_computed_tokens_ptr + req_state_idx)",
        "tl.load(num_computed_tokens_ptr + req_id)",
        "DRAFT-INPUTS-VALUES",
        "DRAFT-INPUTS-OWNED",
    ),
    _mutant(
        "drafts over the last sampled token",
        COMBINED,
        "input_ids_ptr + query_end - num_draft_tokens + block",
        "input_ids_ptr + query_end - num_logits + block",
        "DRAFT-INPUTS-VALUES",
    ),
    _mutant(
        "a chunk's token counts",
        COUNTED,
        "is_chunked_prefilling = seq_len < prefill_len",
        "is_chunked_prefilling = seq_len < 0",
        "DRAFT-INPUTS-VALUES",
        cases=600,
    ),
    _mutant(
        "sampled tokens over those before",
        UPDATED,
        "all_token_ids_stride + total_len + i",
        "all_token_ids_stride + i",
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    *((V1, each) for each in (NEXT, PLACES, STEP, EXPAND)),
    *((V2, each) for each in (PROMPTS, POSITIONS, COMBINED, COUNTED, UPDATED)),
    (V2, EXPANDED),
)
