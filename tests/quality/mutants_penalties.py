"""Faults planted in V2's sampling states and kernels."""

from fuzz.edits import SourceEdit
from tests.quality.mutant import Mutant

_SAMPLE = "vllm.v1.worker.gpu.sample"
PENALTIES = (f"{_SAMPLE}.penalties",)
BIAS = (f"{_SAMPLE}.logit_bias",)
WORDS = (f"{_SAMPLE}.bad_words",)
GUMBEL = (f"{_SAMPLE}.gumbel",)
MIN_P = (f"{_SAMPLE}.min_p",)
BATCH = ("vllm.v1.worker.gpu.input_batch",)


def _mutant(
    name: str,
    modules: tuple[str, ...],
    function: str,
    plant: tuple[str, str],
    *invariants: str,
    cases: int = 100,
) -> Mutant:
    old, new = plant
    edit = SourceEdit(modules=modules, function=function, old=old, new=new)
    return Mutant(
        name=name,
        origin="wired",
        edits=(edit,),
        invariants=invariants,
        cases=cases,
        size=1_200,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "counts of a slot that is used again",
        PENALTIES,
        "bincount",
        ("output_bin_counts.index_fill_(0, idx_long, 0)", ""),
        "PENALTIES-COUNTS",
    ),
    _mutant(
        "counts of slots in 32 bits",
        PENALTIES,
        "_penalties_kernel",
        (
            "req_state_idx * output_bin_counts_stride",
            "(req_state_idx * output_bin_counts_stride).to(tl.int32)",
        ),
        "PENALTIES-EXACT",
        cases=300,
    ),
    _mutant(
        "a stop token too early",
        BIAS,
        "_bias_kernel",
        ("pos + 1 < min_len", "pos + 2 < min_len"),
        "PENALTIES-LOGITS",
        cases=300,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (PENALTIES, "_penalties_kernel"),
    (PENALTIES, "_bincount_kernel"),
    (PENALTIES, "PenaltiesState.apply_staged_writes"),
    (BIAS, "_bias_kernel"),
    (WORDS, "_bad_words_kernel"),
    (GUMBEL, "_temperature_kernel"),
    (MIN_P, "_min_p_kernel"),
    (BATCH, "_post_update_kernel"),
)
