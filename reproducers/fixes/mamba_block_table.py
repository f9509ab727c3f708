"""Fixed implementations for the aligned Mamba block table.

The window itself is written anew; where a tree sizes its tables too narrow or gives up
on a request that needs fewer blocks than before, one expression changes.
"""

from typing import TYPE_CHECKING, Any

from fuzz.edits import Replacement, SourceEdit
from reproducers.fix import Fix

if TYPE_CHECKING:
    import torch


def clamped_window(
    block_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    kv_cache_spec: Any,
    mamba_cache_mode: str,
) -> "torch.Tensor":
    """The state blocks of each request's step, never read from beyond its row.

    A window that reaches beyond the row has the null block there: those columns stand
    for positions beyond `max_model_len`, whose states nobody owns, and block 0 is the
    one id through which no kernel reads or overwrites the state of a request.

    Args:
        block_table: ``[requests, columns]`` int32, any strides.
        seq_lens: ``[requests]``, 0 for padding rows.
        kv_cache_spec: The group's `MambaSpec`.
        mamba_cache_mode: ``align``; any other mode gives the table back as it is.

    Returns:
        ``[requests, 1 + num_speculative_blocks]``, dtype and device of the table.
    """
    import torch

    if mamba_cache_mode != "align":
        return block_table
    columns = block_table.shape[1]
    first = ((seq_lens.long() - 1) // kv_cache_spec.block_size).clamp(min=0)
    window = torch.arange(
        1 + kv_cache_spec.num_speculative_blocks, device=block_table.device
    )
    wanted = first.unsqueeze(1) + window
    inside = wanted < columns
    found = block_table.gather(1, wanted.clamp(max=columns - 1))
    return found.where(inside, found.new_zeros(()))


_HOME = ("vllm.v1.attention.backends.utils",)
_RUNNER = ("vllm.v1.worker.gpu_model_runner",)
_MANAGER = ("vllm.v1.core.single_type_kv_cache_manager",)

FIXES: tuple[Fix, ...] = (
    Fix(
        name="clamps the window to the row, null block beyond it",
        sites=(
            "mamba_get_block_table_tensor",
            "_mamba_align_block_table_kernel",
            "_mamba_align_block_table_kernel: block_table_ptr",
        ),
        edits=(
            Replacement(
                modules=_HOME,
                function="mamba_get_block_table_tensor",
                implementation="reproducers.fixes.mamba_block_table:clamped_window",
            ),
        ),
    ),
    # 0.20.1 keeps the placeholder table of a model whose only group has the
    # placeholder's block size, however many columns the group needs.
    Fix(
        name="also makes the tables anew when their width changes",
        sites=("GPUModelRunner.may_reinitialize_input_batch",),
        edits=(
            SourceEdit(
                modules=_RUNNER,
                function="GPUModelRunner.may_reinitialize_input_batch",
                old="or kernel_block_sizes != self._init_kernel_block_sizes\n    ):",
                new="or kernel_block_sizes != self._init_kernel_block_sizes\n"
                "        or max_num_blocks\n"
                "        != [\n"
                "            each.max_num_blocks_per_req // each.blocks_per_kv_block\n"
                "            for each in self.input_batch.block_table.block_tables\n"
                "        ]\n"
                "    ):",
            ),
        ),
    ),
    # Fewer drafts than in the step before may need fewer blocks than are held
    # (vLLM issue 39271).
    Fix(
        name="keeps blocks that a shorter step does not need",
        sites=("MambaManager.allocate_new_blocks",),
        edits=(
            SourceEdit(
                modules=_MANAGER,
                function="MambaManager.allocate_new_blocks",
                old="if num_required_blocks == len(req_blocks):",
                new="if num_required_blocks <= len(req_blocks):",
            ),
        ),
    ),
)
