"""What sampling parameters make of one row of logits, in float64.

The order is the sampler's: bias and bans, penalties, bad words, temperature, min_p
(`Sampler.apply_sampling_params` in vllm/v1/worker/gpu/sample/sampler.py). The meaning
of each parameter is that of vllm/sampling_params.py of 0.20.1 and 0.33.0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import TYPE_CHECKING

from invariants.penalties_case import PARTS, Case, Part, Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# Unit roundoff of float32, the type of processed logits.
ROUNDOFF = 2.0**-24
# Roundings of one logit on its way: bias, 1/scale, scale, two products and two
# differences, temperature; doubled, for each counts the terms before it again.
_ROUNDINGS = 16

# Rules, by kernel, the surest culprit first: a token that is wrong by one of the last
# may be so because min_p was led astray by another token.
RULES = (
    "_bias_kernel: min_tokens",
    "_bad_words_kernel",
    "_bias_kernel: bias",
    "_penalties_kernel",
    "_bias_kernel: allowed",
    "_temperature_kernel",
    "_min_p_kernel",
    "",
)


@dataclass(frozen=True, eq=False)
class Row:
    """One row.

    Attributes:
        logits: ``[vocabulary]``, minus infinity for tokens that are banned.
        allowed: Error allowed to each.
        either: Tokens so near the threshold of min_p that they may be banned or not.
        rules: Which of `RULES` decides each token, "" for none.
    """

    logits: Floats
    allowed: Floats
    either: Bools
    rules: list[str]


def counts_of(case: Case, request: int, *, drafts: int = 0) -> Counter[int]:
    """How often each token is in a request's output, some of its drafts included."""
    one = case.requests[request]
    end = one.prompt + one.output + drafts
    return Counter(case.tokens(request)[one.prompt : end])


def expected_row(case: Case, row: int, raw: Floats) -> Row:
    """What becomes of a row of logits."""
    import numpy as np

    request, drafts = case.rows[row]
    one = case.requests[request]
    parts = PARTS if case.part == "all" else (case.part,)
    logits = raw.copy()
    size = np.abs(np.where(np.isfinite(raw), raw, 0.0))
    rules = [""] * len(raw)
    scale = 1.0
    if "bias" in parts:
        _bias(one, drafts, logits, size, rules)
    if "penalties" in parts and one.penalised:
        _penalise(case, row, logits, size, rules)
    if "bad_words" in parts:
        _ban_words(case, row, logits, rules)
    if "temperature" in parts and one.temperature not in {0.0, 1.0}:
        scale = one.temperature
        rules = [rule or "_temperature_kernel" for rule in rules]
    logits, size = logits / scale, size / scale
    allowed = size * ROUNDOFF * _ROUNDINGS
    either = np.zeros(len(raw), dtype=np.bool_)
    if "min_p" in parts and one.min_p and one.temperature:
        top = int(np.argmax(logits))
        least = logits[top] + log(one.min_p)
        if isfinite(least):
            slack = allowed + allowed[top] + ROUNDOFF * _ROUNDINGS * abs(least)
            either = np.abs(logits - least) <= slack
            out = np.isfinite(logits) & (logits < least) & ~either
            for token in np.flatnonzero(out):
                rules[token] = "_min_p_kernel"
            logits[out] = -inf
    return Row(logits, allowed, either, rules)


def changed(case: Case, row: int) -> tuple[Part, ...]:
    """Parts that change anything in a row."""
    one = case.requests[case.rows[row][0]]
    asked: dict[Part, bool] = {
        "bias": bool(one.bias or one.allowed or (one.min_tokens and one.stops)),
        "penalties": one.penalised,
        "bad_words": bool(one.bad_words),
        "temperature": one.temperature not in {0.0, 1.0},
        "min_p": bool(one.min_p and one.temperature),
    }
    parts = PARTS if case.part == "all" else (case.part,)
    return tuple(part for part in parts if asked[part])


def _bias(
    one: Request, drafts: int, logits: Floats, size: Floats, rules: list[str]
) -> None:
    if one.allowed:
        kept = {token: logits[token] for token in one.allowed}
        logits[:] = -inf
        for token, logit in kept.items():
            logits[token] = logit
        rules[:] = ["_bias_kernel: allowed"] * len(rules)
    for token, number in one.bias:
        logits[token] += number
        size[token] += abs(number)
        _rule(rules, token, "_bias_kernel: bias")
    for token in one.stops if one.min_tokens else ():
        _rule(rules, token, "_bias_kernel: min_tokens")
        if one.output + drafts < one.min_tokens:
            logits[token] = -inf


def _rule(rules: list[str], token: int, rule: str) -> None:
    """Name what decides a token: of several rules the surest culprit."""
    rules[token] = min(rules[token], rule, key=RULES.index)


def _penalise(
    case: Case, row: int, logits: Floats, size: Floats, rules: list[str]
) -> None:
    request, drafts = case.rows[row]
    one = case.requests[request]
    counts = counts_of(case, request, drafts=drafts)
    prompt = set(case.tokens(request)[: one.prompt])
    # Reciprocals enter the size as they enter the number.
    for token in prompt | set(counts):
        factor = 1.0 / one.repetition if logits[token] > 0 else one.repetition
        logits[token] *= factor
        size[token] *= factor
        _rule(rules, token, "_penalties_kernel")
    for token, count in counts.items():
        logits[token] -= one.frequency * count + one.presence
        size[token] += abs(one.frequency) * count + abs(one.presence)


def _ban_words(case: Case, row: int, logits: Floats, rules: list[str]) -> None:
    request, drafts = case.rows[row]
    one = case.requests[request]
    end = one.prompt + one.output + drafts
    output = case.tokens(request)[one.prompt : end]
    for word in one.bad_words:
        *before, last = word
        _rule(rules, last, "_bad_words_kernel")
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            logits[last] = -inf
