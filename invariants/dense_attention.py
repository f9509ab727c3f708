"""Dense causal attention in float64, and how far a kernel may be from it.

The reference gathers nothing from the pool: it is given the logical keys and values of
one request. The tolerance is a bound on the rounding of any order of summation.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Unit roundoff (half a unit in the last place) of round-to-nearest.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Half the smallest subnormal: what a value near zero loses whatever its size.
UNDERFLOW = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}


@dataclass(frozen=True, kw_only=True)
class DenseAttention:
    """Attention of one request's query tokens.

    Attributes:
        output: ``[tokens, heads, head_size]`` float64.
        allowed: Error allowed to each element, the same shape.
    """

    output: "torch.Tensor"
    allowed: "torch.Tensor"


def dense_attention(
    *,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    scale: float,
    window: int,
    dtype: str,
    rounded_cache: bool,
    stored_max: float,
    sinks: "torch.Tensor | None" = None,
    factor_roundoff: float = 0.0,
) -> DenseAttention:
    """Attend query tokens to keys, the last of which are their own.

    With u the roundoff of ``dtype`` and e that of float32, the kernels round: each
    score by d e |q||k| (plus u |q||k| where a dequantised key is rounded to ``dtype``),
    so a weight by twice that, for the running maximum is rounded as the scores are; the
    weight itself by u; the sums over n keys by n e each, twice (weights, and weighted
    values), and a few e for exponentials and rescaling; the output by u. Relative
    errors of weights reach the output through the weighted mean of |v|. In float16 a
    weight may underflow: half the smallest subnormal for each key, times the largest
    stored value.

    Args:
        query: ``[tokens, heads, head_size]`` float64.
        key: ``[keys, kv_heads, head_size]`` float64.
        value: The same.
        scale: Multiplies the scores.
        window: Keys that a token sees, itself included; 0 for all before it.
        dtype: Of the query, of the weights in the second product, of the output.
        rounded_cache: Whether dequantised keys and values are rounded to ``dtype``.
        stored_max: Largest magnitude in the cache as stored, before its scale.
        sinks: ``[heads]`` float64 logits that take part in the softmax and have no
            value; None for none.
        factor_roundoff: Relative, of what the factors of both products lose before
            they are multiplied, as float32 in TF32.
    """
    import torch

    tokens, heads, head_size = query.shape
    keys, kv_heads, _ = key.shape
    group = heads // kv_heads
    key_of_head = key.repeat_interleave(group, dim=1)
    value_of_head = value.repeat_interleave(group, dim=1)
    at = torch.arange(keys)[None, :]
    position = torch.arange(keys - tokens, keys)[:, None]
    seen = at <= position
    if window:
        seen &= at > position - window
    scores = torch.einsum("thd,khd->htk", query, key_of_head) * scale
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        logits = sinks[:, None, None].expand(heads, tokens, 1)
        weights = torch.softmax(torch.cat([scores, logits], dim=-1), dim=-1)[..., :-1]
    output = torch.einsum("htk,khd->thd", weights, value_of_head)

    magnitude = torch.einsum("thd,khd->htk", query.abs(), key_of_head.abs()) * scale
    magnitude = magnitude.masked_fill(~seen, 0.0).amax(dim=-1)
    if sinks is not None:
        magnitude = torch.maximum(magnitude, sinks.abs()[:, None])
    roundoff, single = ROUNDOFF[dtype], ROUNDOFF["float32"]
    cache = roundoff if rounded_cache else 0.0
    factors = 2 * factor_roundoff
    score_error = magnitude * ((head_size + 2) * single + cache + factors)
    relative = 2 * score_error + roundoff + cache + (2 * keys + 32) * single + factors
    mean = torch.einsum("htk,khd->thd", weights, value_of_head.abs())
    before = mean * torch.expm1(relative).transpose(0, 1)[:, :, None]
    before = before + keys * UNDERFLOW[dtype] * stored_max
    allowed = before + roundoff * (output.abs() + before) + UNDERFLOW[dtype]
    return DenseAttention(output=output, allowed=allowed)
