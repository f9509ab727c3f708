"""Fixes of what makes the next step's inputs."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_V1 = ("vllm.v1.spec_decode.utils",)
_V2 = ("vllm.v1.worker.gpu.input_batch",)
_BLOCK = "tl.load(block_table_ptr + req_idx * block_table_stride + block_number)"


def _in_64_bits(kernel: str, row: str) -> SourceEdit:
    loaded = f"req_state_idx = tl.load(idx_mapping_ptr + {row})"
    return SourceEdit(
        modules=_V2,
        function=kernel,
        old=f"{loaded}\n",
        new=f"{loaded}.to(tl.int64)\n",
    )


FIXES = (
    Fix(
        name="slots of a drafter's step in 64 bits",
        sites=("step: slot_mapping",),
        edits=(
            SourceEdit(
                modules=_V1,
                function="eagle_step_slot_mapping_metadata_kernel",
                old=_BLOCK,
                new=f"{_BLOCK}.to(tl.int64)",
            ),
        ),
    ),
    Fix(
        name="slots of a drafter's first pass in 64 bits",
        sites=("expand: slot_mapping",),
        edits=(
            SourceEdit(
                modules=_V1,
                function="compute_new_slot_mapping",
                old="block_nums * block_size",
                new="block_nums.long() * block_size",
            ),
        ),
    ),
    Fix(
        name="rows of requests' tokens in 64 bits",
        sites=tuple(
            f"{kernel}: all_token_ids_ptr"
            for kernel in ("_prepare_prefill_inputs_kernel", "_post_update_kernel")
        ),
        edits=(
            _in_64_bits("_prepare_prefill_inputs_kernel", "batch_idx"),
            _in_64_bits("_post_update_kernel", "req_id"),
        ),
    ),
)
