"""One row of decode attention in float64, and how far a kernel may be from it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from invariants.dense_attention import ROUNDOFF, UNDERFLOW

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DecodeRow:
    """Attention of one token.

    Attributes:
        output: ``[heads, value_size]`` float64.
        output_allowed: Error allowed to each element.
        lse: ``[heads]`` float64, natural logarithm.
        lse_allowed: The same.
    """

    output: "torch.Tensor"
    output_allowed: "torch.Tensor"
    lse: "torch.Tensor"
    lse_allowed: "torch.Tensor"


def decode_row(
    *,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    scale: float,
    cap: float,
    dtype: str,
    lse_dtype: str,
    score_roundoff: float,
    terms: int,
    rounded_cache: bool,
    stored_max: float,
) -> DecodeRow:
    """Attend one token to every key.

    With u the roundoff of ``dtype``, e that of float32 and s that of the products and
    their sum, a score is off by ``(terms + 2) s |q||k|``, plus u |q||k| where a
    dequantised key is rounded to ``dtype``; a cap keeps that, as its slope is at most
    one, and adds a few e of its own size. A weight is off by twice that, for the
    running maximum is off too, by u where it is rounded for the second product, and by
    n e for the sums over n keys, twice; a few e more are exponentials and the merging
    of splits. The log-sum-exp is off as the largest score is, and by those sums.

    Args:
        query: ``[heads, key_size]`` float64.
        key: ``[keys, kv_heads, key_size]`` float64; at least one key.
        value: ``[keys, kv_heads, value_size]`` float64.
        scale: Multiplies the scores.
        cap: Bound of the scores by a hyperbolic tangent, 0 for none.
        dtype: Of query and output.
        lse_dtype: Of the log-sum-exp as it is stored.
        score_roundoff: Of what products of query and key are summed in.
        terms: Elements of a query that are not zero, at most.
        rounded_cache: Whether dequantised keys and values are rounded to ``dtype``.
        stored_max: Largest magnitude of a value.
    """
    import torch

    heads, keys = len(query), len(key)
    group = heads // key.shape[1]
    keys_of_head = key.repeat_interleave(group, dim=1)
    values_of_head = value.repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,khd->hk", query, keys_of_head) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    lse = torch.logsumexp(scores, dim=1)
    weights = torch.exp(scores - lse[:, None])
    output = torch.einsum("hk,khd->hd", weights, values_of_head)

    magnitude = torch.einsum("hd,khd->hk", query.abs(), keys_of_head.abs()) * scale
    largest = magnitude.amax(dim=1)
    roundoff, single = ROUNDOFF[dtype], ROUNDOFF["float32"]
    cache = roundoff if rounded_cache else 0.0
    score_error = largest * ((terms + 2) * score_roundoff + cache) + 8 * cap * single
    sums = (2 * keys + 32) * single
    relative = 2 * score_error + roundoff + cache + sums
    mean = torch.einsum("hk,khd->hd", weights, values_of_head.abs())
    before = (
        mean * torch.expm1(relative)[:, None] + keys * UNDERFLOW[dtype] * stored_max
    )
    lse_before = (
        score_error + sums + 8 * single * (scores.abs().amax(dim=1) + lse.abs())
    )
    stored = ROUNDOFF[lse_dtype]
    return DecodeRow(
        output=output,
        output_allowed=before + roundoff * (output.abs() + before) + UNDERFLOW[dtype],
        lse=lse,
        lse_allowed=lse_before
        + stored * (lse.abs() + lse_before)
        + UNDERFLOW[lse_dtype],
    )
