"""Fixes of rejection sampling in both runners."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_V1 = ("vllm.v1.sample.rejection_sampler",)
_RANDOM = "rejection_random_sample_kernel"
_RECOVERED = "sample_recovered_tokens_kernel"
_UTILITIES = ("vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",)
_PROBABILISTIC = (
    "vllm.v1.worker.gpu.spec_decode.probabilistic_rejection_sampler_utils",
)
_STATS_OLD = "_compute_block_max_and_sumexp_kernel"
_REJECTION_OLD = "_probabilistic_rejection_kernel"
_LOADED = "tl.load(draft_token_ids_ptr + start_idx + pos)"
_RULE = "accepted = draft_prob > 0 and"
_STATE = "req_state_idx = tl.load(expanded_idx_mapping_ptr"
_COUNTED = "    num_draft_tokens = end_idx - start_idx\n"
_WIDENED = f"{_COUNTED}    start_idx = start_idx.to(tl.int64)\n"


def _v1(function: str, old: str, new: str) -> SourceEdit:
    return SourceEdit(modules=_V1, function=function, old=old, new=new)


def _old_v2(function: str, *texts: str) -> tuple[SourceEdit, ...]:
    return tuple(
        SourceEdit(
            modules=_PROBABILISTIC,
            function=function,
            old=f"{text}\n",
            new=f"{text}.to(tl.int64)\n",
        )
        for text in texts
    )


def _in_vocabulary(function: str) -> SourceEdit:
    return SourceEdit(
        modules=_UTILITIES,
        function=function,
        old="token_id = block_idx * BLOCK_SIZE + idx",
        new="token_id = tl.minimum(block_idx * BLOCK_SIZE + idx, vocab_size - 1)",
    )


FIXES = (
    # 0.33.0 has a branch of its own for placeholders, and needs the first edits only.
    Fix(
        name="tokens times the vocabulary in 64 bits, placeholders rejected unread",
        sites=(
            "v1: recovered",
            *(
                f"{kernel}: {tensor}"
                for kernel in (_RANDOM, _RECOVERED)
                for tensor in ("draft_probs_ptr", "target_probs_ptr")
            ),
        ),
        edits=(
            _v1(_RANDOM, _COUNTED, _WIDENED),
            _v1(_RECOVERED, _COUNTED, _WIDENED),
            _v1(
                _RANDOM,
                f"draft_token_id = {_LOADED}",
                f"draft_token_id = tl.maximum({_LOADED}, 0)",
            ),
            _v1(_RANDOM, _RULE, f"accepted = {_LOADED} >= 0 and draft_prob > 0 and"),
        ),
    ),
    Fix(
        name="rows and states of logits in 64 bits",
        sites=tuple(
            f"{kernel}: {tensor}"
            for kernel in (_STATS_OLD, _REJECTION_OLD, "_resample_kernel")
            for tensor in ("target_logits_ptr", "draft_logits_ptr")
        ),
        edits=(
            *_old_v2(
                _STATS_OLD,
                "logit_idx = tl.program_id(0)",
                f"{_STATE} + logit_idx)",
            ),
            *_old_v2(
                _REJECTION_OLD,
                "req_state_idx = tl.load(idx_mapping_ptr + req_idx)",
                "start_idx = tl.load(cu_num_logits_ptr + req_idx)",
            ),
            *_old_v2(
                "_resample_kernel",
                "start_idx = tl.load(cu_num_logits_ptr + req_idx)",
                f"{_STATE} + resample_token_idx)",
            ),
        ),
    ),
    Fix(
        name="tokens of rows that are NaN stay in the vocabulary",
        sites=("v2: sampled",),
        edits=(
            _in_vocabulary("_compute_local_logits_stats_kernel"),
            _in_vocabulary("_resample_kernel"),
        ),
    ),
)
