"""Fixes of V2's sampling kernels."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_SAMPLE = "vllm.v1.worker.gpu.sample"
# Of each kernel that has rows of logits its module.
_ROWS = {
    "_bias_kernel": f"{_SAMPLE}.logit_bias",
    "_penalties_kernel": f"{_SAMPLE}.penalties",
    "_bad_words_kernel": f"{_SAMPLE}.bad_words",
    "_temperature_kernel": f"{_SAMPLE}.gumbel",
    "_min_p_kernel": f"{_SAMPLE}.min_p",
}
# Of those that have a row per request, how they load its slot.
_SLOTS = {
    "_penalties_kernel": "expanded_idx_mapping_ptr + token_idx",
    "_bad_words_kernel": "expanded_idx_mapping_ptr + token_idx",
    "_bincount_kernel": "expanded_idx_mapping_ptr + token_idx",
    "_post_update_kernel": "idx_mapping_ptr + req_id",
}
_MODULES = {
    "_bincount_kernel": f"{_SAMPLE}.penalties",
    "_post_update_kernel": "vllm.v1.worker.gpu.input_batch",
    **_ROWS,
}
_TABLES = (
    "prompt_bin_mask_ptr",
    "output_bin_counts_ptr",
    "all_token_ids_ptr",
)


def _wide(kernel: str, number: str) -> SourceEdit:
    """A number that a kernel loads or is given, in 64 bits."""
    return SourceEdit(
        modules=(_MODULES[kernel],),
        function=kernel,
        old=number,
        new=f"{number}.to(tl.int64)",
    )


FIXES = (
    Fix(
        name="rows of logits in 64 bits",
        sites=tuple(f"{kernel}: logits_ptr" for kernel in _ROWS),
        edits=tuple(_wide(kernel, "token_idx = tl.program_id(0)") for kernel in _ROWS),
    ),
    Fix(
        name="slots of requests in 64 bits",
        sites=tuple(f"{kernel}: {table}" for kernel in _SLOTS for table in _TABLES),
        edits=tuple(
            _wide(kernel, f"req_state_idx = tl.load({where})")
            for kernel, where in _SLOTS.items()
        ),
    ),
    # The row after `min_tokens` output tokens may have a stop token: its input token
    # is at position prompt + min_tokens - 1.
    Fix(
        name="stop tokens may come after min_tokens tokens",
        sites=("_bias_kernel: min_tokens",),
        edits=(
            SourceEdit(
                modules=(_MODULES["_bias_kernel"],),
                function="_bias_kernel",
                old="pos < min_len",
                new="pos + 1 < min_len",
            ),
        ),
    ),
    # The first of a request's rows came after its last token, its drafts follow.
    Fix(
        name="words are compared with the drafts",
        sites=("_bad_words_kernel",),
        edits=(
            SourceEdit(
                modules=(_MODULES["_bad_words_kernel"],),
                function="_bad_words_kernel",
                old="+ cur_req_first_pos + spec_offset)",
                new="+ cur_req_first_pos + spec_offset + 1)",
            ),
        ),
    ),
)
