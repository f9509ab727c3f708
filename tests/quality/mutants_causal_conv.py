"""Faults planted in the kernels of the causal convolution."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

OPS = ("vllm.model_executor.layers.mamba.ops.causal_conv1d",)
PROMPTS = "_causal_conv1d_fwd_kernel"
UPDATE = "_causal_conv1d_update_kernel"


def _mutant(
    name: str,
    function: str,
    old: str,
    new: str,
    *invariants: str,
    origin: Origin = "wired",
    cases: int = 150,
) -> Mutant:
    edit = SourceEdit(modules=OPS, function=function, old=old, new=new)
    return Mutant(
        name=name,
        origin=origin,
        edits=(edit,),
        invariants=invariants,
        cases=cases,
        size=400,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "windows of rows in 32 bits",
        UPDATE,
        "conv_state_ptr\n        + (conv_states_input_coord * stride_conv_state_seq)\n"
        "        + (idx_feats * stride_conv_state_dim)\n    )\n    mask_w",
        "conv_state_ptr\n        + (conv_states_input_coord * stride_conv_state_seq)"
        ".to(tl.int32)\n"
        "        + (idx_feats * stride_conv_state_dim)\n    )\n    mask_w",
        "CONV-EXACT",
    ),
    _mutant(
        "the window of accepted drafts, not of the last",
        UPDATE,
        "(idx_tokens + (1 if IS_SPEC_DECODING else seqlen))",
        "(idx_tokens + (2 if IS_SPEC_DECODING else seqlen))",
        "CONV-WINDOW",
        "CONV-OWNED",
    ),
    _mutant(
        "rows of padding are convolved",
        UPDATE,
        "if HAS_NULL_BLOCK:",
        "if False:",
        "CONV-OWNED",
    ),
    _mutant(
        "a row with fewer drafts keeps the window of a full one",
        UPDATE,
        "state_len = state_len - (seqlen - (query_end_index - query_start_index))",
        "state_len = state_len + 0 * (query_end_index - query_start_index)",
        "CONV-WINDOW",
        "CONV-OWNED",
    ),
    _mutant(
        "a prompt's second chunk starts from nothing",
        PROMPTS,
        "prior_tokens = x_base + (token_offset - 1) * stride_x_token",
        "prior_tokens = x_base + (token_offset - 2) * stride_x_token",
        "CONV-OUTPUT",
        "CONV-OWNED",
        cases=300,
    ),
    _mutant(
        "a short prompt shifts its window once",
        PROMPTS,
        "((idx_tokens_conv + seqlen) * stride_conv_state_tok)",
        "((idx_tokens_conv + 1) * stride_conv_state_tok)",
        "CONV-WINDOW",
        cases=600,
    ),
    _mutant(
        "windows of prompts without one are read",
        PROMPTS,
        "load_init_state = tl.load(has_initial_states_ptr + idx_seq).to(tl.int1)",
        "load_init_state = tl.load(has_initial_states_ptr + idx_seq) >= 0",
        "CONV-OWNED",
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (OPS, PROMPTS),
    (OPS, UPDATE),
)
