"""A causal convolution in float64, token by token, and the window that it leaves.

The reference is given the inputs of one request, window first, and knows of no pages.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from invariants.dense_attention import ROUNDOFF, UNDERFLOW

if TYPE_CHECKING:
    import torch

# The steepest slope of SiLU.
_SILU_SLOPE = 1.1


@dataclass(frozen=True, kw_only=True)
class Convolved:
    """What one request's step gives.

    Attributes:
        output: ``[tokens, channels]`` float64.
        allowed: Error allowed to each element, the same shape.
    """

    output: "torch.Tensor"
    allowed: "torch.Tensor"


def convolved(
    *,
    history: "torch.Tensor",
    inputs: "torch.Tensor",
    weight: "torch.Tensor",
    bias: "torch.Tensor | None",
    silu: bool,
    dtype: str,
) -> Convolved:
    """Convolve each token with those before it.

    With u the roundoff of ``dtype`` and e that of float32, the kernels round each
    product by u (it may underflow, too), their sum and the bias by (width + 8) e of the
    sum of magnitudes, which SiLU grows by at most 1.1, and the output by u.

    Args:
        history: ``[width - 1, channels]`` inputs before the first; zeros for none.
        inputs: ``[tokens, channels]``.
        weight: ``[channels, width]``, the last column for a token itself.
        bias: ``[channels]``, None for none.
        silu: Whether SiLU follows.
        dtype: Of inputs and output.
    """
    import torch

    width = weight.shape[1]
    whole = torch.cat([history, inputs]).double()
    windows = whole.unfold(0, width, 1)
    terms = windows * weight.double()
    total, size = terms.sum(-1), terms.abs().sum(-1)
    if bias is not None:
        total, size = total + bias.double(), size + bias.double().abs()
    roundoff, single = ROUNDOFF[dtype], ROUNDOFF["float32"]
    before = (roundoff + (width + 8) * single) * size + width * UNDERFLOW[dtype]
    output = total * torch.sigmoid(total) if silu else total
    before = before * (_SILU_SLOPE if silu else 1.0)
    allowed = before + roundoff * (output.abs() + before) + UNDERFLOW[dtype]
    return Convolved(output=output, allowed=allowed)


def next_window(
    *, window: "torch.Tensor", inputs: "torch.Tensor", kept: int
) -> "torch.Tensor":
    """The window after a step: its first columns are replaced, the rest stays.

    Args:
        window: ``[columns, channels]`` before.
        inputs: ``[tokens, channels]``, history first.
        kept: Columns that are replaced, by the last of the inputs.
    """
    import torch

    return torch.cat([inputs[len(inputs) - kept :], window[kept:]])
