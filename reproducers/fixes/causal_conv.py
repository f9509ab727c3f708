"""Fixes of the causal convolution."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_OPS = ("vllm.model_executor.layers.mamba.ops.causal_conv1d",)
_UPDATE = "_causal_conv1d_update_kernel"
_ACCEPTED = "tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64)"

FIXES = (
    # Discarded rows of asynchronous steps have no accepted token; the column before the
    # window's first is another block's.
    Fix(
        name="at least the first column of a window",
        sites=(f"{_UPDATE}: conv_state_ptr",),
        edits=(
            SourceEdit(
                modules=_OPS,
                function=_UPDATE,
                old=f"{_ACCEPTED} - 1",
                new=f"tl.maximum({_ACCEPTED}, 1) - 1",
            ),
        ),
    ),
)
