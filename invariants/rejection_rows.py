"""What rejection sampling may give for a row of drafts, in float64.

A draft is accepted with probability min(1, p / q); the first one that is not is
replaced by a token of the residual max(p - q, 0), after the last one comes a bonus
token (Leviathan et al. 2023, section 2.3). A greedy request takes the target's best
token. Where float32 may decide either way, both are right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from invariants.rejection_case import PLACEHOLDER
from invariants.rejection_sampler import Mismatch, What

if TYPE_CHECKING:
    import torch

# Relative, of a probability: 64 roundoffs of float32 for its exponential, the sum over
# the vocabulary and the quotient.
_ERROR = 64 * 2.0**-24


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One draft, or the bonus token after the last.

    Attributes:
        token: The draft, -1 for a placeholder or the bonus token.
        logits: ``[vocab]`` float64 of the target, temperature applied.
        drafter: ``[vocab]`` float64 probabilities of the drafter, None for a drafter
            that tells none, and is taken for certain.
        uniform: The number that acceptance is decided with, None if it is not known.
        noise: ``[vocab]`` float64 weights of the recovered token's draw, or None.
    """

    token: int
    logits: "torch.Tensor"
    drafter: "torch.Tensor | None" = None
    uniform: float | None = None
    noise: "torch.Tensor | None" = None

    @property
    def broken(self) -> bool:
        """Whether the target says nothing."""
        return bool(self.logits.isnan().any())

    @property
    def best(self) -> "torch.Tensor":
        """``[vocab]`` whether a token is the target's best, one of several maybe."""
        return self.logits == self.logits.max()

    def accepted(self, *, greedy: bool) -> bool | None:
        """Whether the draft is; None where either is right."""
        if self.token == PLACEHOLDER:
            return False
        if self.broken:
            return None
        return self._takes_best() if greedy else self._takes_ratio()

    def _takes_best(self) -> bool | None:
        best = self.best
        return None if int(best.sum()) > 1 else bool(best[self.token])

    def _takes_ratio(self) -> bool | None:
        target = float(self.logits.softmax(-1)[self.token])
        drafter = 1.0 if self.drafter is None else float(self.drafter[self.token])
        if drafter == 0.0:
            return False
        ratio = target / drafter
        if self.uniform is None:
            return False if ratio == 0.0 else (ratio > 1 + _ERROR) or None
        if abs(ratio - self.uniform) <= _ERROR * max(ratio, self.uniform):
            return None
        return ratio >= self.uniform

    def recoverable(self, *, greedy: bool) -> "torch.Tensor":
        """``[vocab]`` whether a token may stand where the draft was rejected."""
        if self.broken:
            return self.logits.new_ones(len(self.logits)).bool()
        if greedy:
            return self.best
        target = self.logits.softmax(-1)
        if self.token == PLACEHOLDER:
            return target > 0
        residual, error = target.clone(), _ERROR * target
        if self.drafter is None:
            residual[self.token] = 0.0
            error[self.token] = 0.0
        else:
            residual -= self.drafter
            error += _ERROR * self.drafter
        if bool((residual <= error).all()):
            return self.logits.new_ones(len(self.logits)).bool()
        if self.noise is None:
            return (target > 0) & (residual + error > 0)
        least = (residual - error) * self.noise
        possible: torch.Tensor = (residual + error) * self.noise >= least.max()
        return possible


def first_wrong(
    row: Sequence[int],
    drafts: Sequence[Step],
    bonus: "torch.Tensor",
    *,
    request: int,
    greedy: bool,
    together: bool,
) -> Mismatch | None:
    """Judge one request's tokens, which end where they are -1.

    Args:
        row: ``[steps + 1]`` token ids, -1 where there is none.
        drafts: ``[drafts]`` of the request.
        bonus: ``[vocab]`` whether a token may come after the last draft.
        request: Its number, for the message.
        greedy: Whether it takes the best token.
        together: Whether drafts are verified as a block, so that a later one may be
            accepted where an earlier one alone would not be, and a row that says
            nothing leaves nothing of its request to judge.
    """

    def wrong(what: What, position: int, expected: str) -> Mismatch:
        return Mismatch(
            what=what,
            greedy=greedy,
            request=request,
            position=position,
            got=row[position],
            expected=expected,
        )

    lax = together and not greedy
    if lax and any(each.broken for each in drafts):
        return None
    sure = all(each.accepted(greedy=greedy) for each in drafts)
    for position, (token, draft) in enumerate(zip(row, drafts, strict=False)):
        verdict = draft.accepted(greedy=greedy)
        if lax and verdict and not sure:
            verdict = None
        if verdict is True and token != draft.token:
            return wrong("accepted", position, f"draft {draft.token}")
        goes_on = row[position + 1] != PLACEHOLDER
        if verdict is True or (verdict is None and goes_on and token == draft.token):
            continue
        possible = draft.recoverable(greedy=greedy)
        if not 0 <= token < len(possible) or not bool(possible[token]):
            return wrong("recovered", position, _described(possible))
        return _rest(row, position + 1, wrong)
    last = len(drafts)
    if not 0 <= row[last] < len(bonus) or not bool(bonus[row[last]]):
        return wrong("bonus", last, _described(bonus))
    return _rest(row, last + 1, wrong)


def _rest(
    row: Sequence[int], first: int, wrong: Callable[[What, int, str], Mismatch]
) -> Mismatch | None:
    stray = (at for at in range(first, len(row)) if row[at] != PLACEHOLDER)
    position = next(stray, None)
    return None if position is None else wrong("rest", position, "nothing")


def _described(possible: "torch.Tensor") -> str:
    tokens = possible.nonzero().flatten().tolist()
    return f"one of {tokens}" if len(tokens) <= 4 else f"one of {len(tokens)} tokens"
