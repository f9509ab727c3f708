"""Faults planted in rejection sampling of both runners."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

V1 = ("vllm.v1.sample.rejection_sampler",)
V2 = (
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
    "vllm.v1.worker.gpu.spec_decode.probabilistic_rejection_sampler_utils",
)
GREEDY = "rejection_greedy_sample_kernel"
RANDOM = "rejection_random_sample_kernel"
RECOVERED = "sample_recovered_tokens_kernel"
EXPAND = "expand_kernel"


def _mutant(
    name: str,
    function: str,
    old: str,
    new: str,
    *invariants: str,
    modules: tuple[str, ...] = V1,
    origin: Origin = "wired",
) -> Mutant:
    edit = SourceEdit(modules=modules, function=function, old=old, new=new)
    return Mutant(
        name=name,
        origin=origin,
        edits=(edit,),
        invariants=invariants,
        cases=150,
        size=400,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "what comes after a rejected draft",
        GREEDY,
        "rejected = draft_token_id != target_argmax_id",
        "rejected = False",
        "REJECTION-GREEDY",
    ),
    _mutant(
        "the bonus token of the next request",
        GREEDY,
        "tl.load(bonus_token_ids_ptr + req_idx)",
        "tl.load(bonus_token_ids_ptr + req_idx + 1)",
        "REJECTION-OWNED",
        "REJECTION-GREEDY",
    ),
    _mutant(
        "accepted where the rule rejects",
        RANDOM,
        "target_prob / draft_prob >= uniform_prob",
        "target_prob / draft_prob <= uniform_prob",
        "REJECTION-RANDOM",
    ),
    _mutant(
        "recovered from the target alone",
        RECOVERED,
        "mask=(vocab_mask & (vocab_offset != draft_token_id))",
        "mask=vocab_mask",
        "REJECTION-RANDOM",
    ),
    _mutant(
        "the noise of the first request",
        RECOVERED,
        "inv_q_ptr + req_idx * vocab_size",
        "inv_q_ptr + 0 * vocab_size",
        "REJECTION-RANDOM",
    ),
    _mutant(
        "recovered past the vocabulary",
        RECOVERED,
        "recovered_id = v + local_id",
        "recovered_id = v + BLOCK_SIZE + local_id",
        "REJECTION-VOCABULARY",
        "REJECTION-RANDOM",
    ),
    _mutant(
        "one value too many",
        EXPAND,
        "mask=offset < num_tokens",
        "mask=offset <= num_tokens",
        "REJECTION-EXPANDED",
        "REJECTION-STORES",
        "REJECTION-OWNED",
        "REJECTION-RANDOM",
    ),
    _mutant(
        "the drafter's logits by the step of another request",
        "_resample_kernel",
        "tl.load(rejected_step_ptr + req_idx)",
        "tl.load(rejected_step_ptr)",
        "REJECTION-RANDOM",
        "REJECTION-GREEDY",
        "REJECTION-OWNED",
        "REJECTION-SCRATCH",
        modules=V2,
    ),
    _mutant(
        "a drawn token at the place of the last draft",
        "_insert_resampled_kernel",
        "sampled_ptr + req_idx * sampled_stride + num_sampled,\n        resampled",
        "sampled_ptr + req_idx * sampled_stride,\n        resampled",
        "REJECTION-RANDOM",
        "REJECTION-GREEDY",
        modules=V2,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (V1, GREEDY),
    (V1, RANDOM),
    (V1, RECOVERED),
    (V1, EXPAND),
    (V2, "_insert_resampled_kernel"),
)
