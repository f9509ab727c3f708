"""Logits are what the sampling parameters of their own request make of them.

Every access is judged by `invariants.memory`; what is counted of tokens, and each row
of logits, is compared with plain counts and float64.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.penalised_logits import changed
from invariants.penalties_case import (
    COUNT_TILE,
    PARTS,
    PENALTY_TILE,
    WORD_BITS,
    Case,
    Request,
)
from invariants.verify_case import INT32_LIMIT

TARGET = "penalties"

PAST_COUNTS = "counts of a request beyond 2^31 elements"
PAST_TOKENS = "tokens of a request beyond 2^31 elements"
PAST_ROWS = "row of logits beyond 2^31 elements"
DRAFTED = "rows of draft tokens"
RESUMED = "request that comes with output tokens"
SAMPLED = "tokens sampled since"
REUSED = "slot of a request that has ended"
PERMUTED = "batch in another order than the slots"
MIXED = "rows that nothing changes beside others"
WORD_EDGE = "vocabulary one past whole words of the mask"
TILE_EDGE = "vocabulary one past a tile"
LONG_PROMPT = "prompt longer than a tile"
GREEDY = "greedy request with other parameters"
ALLOWED = "allowed token ids"
BANNED = "stop tokens that are banned"
FREED = "stop tokens that are banned no longer"
LAST_BAN = "stop tokens at the first token that may be one"
WORDS = "bad words of several tokens"
DRAFT_WORDS = "bad words in rows of drafts"

_STATES = (DRAFTED, RESUMED, SAMPLED, REUSED, PERMUTED, LONG_PROMPT)
_RULES = (ALLOWED, BANNED, FREED, LAST_BAN, WORDS, DRAFT_WORDS, GREEDY)
_SIZES = (WORD_EDGE, TILE_EDGE)
_PAST = (PAST_COUNTS, PAST_TOKENS)

EXACT = Invariant(
    id="PENALTIES-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=_PAST,
    contract=(*_PAST, PAST_ROWS),
)
OWNED = Invariant(
    id="PENALTIES-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument, and in states of requests in a "
        "slot of the step."
    ),
    severity="corruption",
    wired=(*_SIZES, *_STATES),
    contract=(*_SIZES, *_STATES, *PARTS),
)
STORES = Invariant(
    id="PENALTIES-STORES",
    target=TARGET,
    statement=(
        "Launches store to logits and counts only, and no two programs store different "
        "numbers to one element."
    ),
    severity="corruption",
    wired=(*_SIZES, *_STATES),
    contract=(*_SIZES, *_STATES, *PARTS),
)
RAISES = Invariant(
    id="PENALTIES-RAISES",
    target=TARGET,
    statement="Parameters that are accepted can be applied to any step.",
    severity="crash",
    wired=_STATES,
    contract=(*_STATES, *PARTS),
)
COUNTS = Invariant(
    id="PENALTIES-COUNTS",
    target=TARGET,
    statement=(
        "Of each request with penalties, prompt tokens are marked and output tokens "
        "counted: its own, whoever had its slot before."
    ),
    severity="corruption",
    wired=(*_SIZES, *_STATES),
    contract=(*_SIZES, *_STATES),
)
LOGITS = Invariant(
    id="PENALTIES-LOGITS",
    target=TARGET,
    statement=(
        "Each row of logits is what its request's parameters say; rows that none "
        "changes stay as they were."
    ),
    severity="corruption",
    wired=(*_SIZES, *_STATES, *_RULES, MIXED),
    contract=(*_SIZES, *_STATES, *_RULES, *PARTS, MIXED),
)
INVARIANTS = (EXACT, OWNED, STORES, RAISES, COUNTS, LOGITS)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The first number that is another one.

    Attributes:
        where: Row of logits, or request whose tokens are counted.
        rule: Of logits, what decides the token; else the tensor.
        got: As text, for JSON has no infinity.
    """

    kind: Literal["counts", "logits"]
    where: int
    token: int
    got: str
    expected: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a step did, as far as nothing was found.

    Attributes:
        raised: What escaped the tree.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        slots: Of each request, in the order of the case.
        reused: Whether one has a slot that an ended one had.
    """

    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    mismatch: Mismatch | None = None
    slots: tuple[int, ...] = ()
    reused: bool = False


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one step."""
    labels = _labels(case, observation)
    early = settled(observation, raises=RAISES, origin=case.origin, labels=labels)
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if not observation.findings:
        judged.add(COUNTS.id)
        wrong = observation.mismatch
        if wrong is None or wrong.kind == "logits":
            judged.add(LOGITS.id)
        if wrong is not None:
            law = LOGITS if wrong.kind == "logits" else COUNTS
            where = "row" if law is LOGITS else "request"
            message = (
                f"{wrong.kind} of {where} {wrong.where}: token {wrong.token} has "
                f"{wrong.got}, expected {wrong.expected} ({wrong.rule})"
            )
            violations = (_violation(case, law, wrong.rule, message),)
    return Judgement(judged=frozenset(judged), violations=violations, labels=labels)


def _violation(
    case: Case, law: Invariant, site: str, message: str, exception: str = ""
) -> Violation:
    return Violation(
        invariant=law.id,
        target=TARGET,
        origin=case.origin,
        site=site,
        message=message,
        evidence={"vocabulary": case.vocabulary, "slots": case.slots},
        exception=exception,
    )


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    requests = case.requests
    top = max(observation.slots, default=0)
    rows = [changed(case, row) for row in range(len(case.rows))]
    asked = {part for parts in rows for part in parts}
    counting = any(each.penalised for each in requests)
    reading = counting or "bad_words" in asked
    biased = [each for each in requests if "bias" in asked and each.stops]
    worded = [each for each in requests if "bad_words" in asked]
    shown: dict[str, bool] = {
        **{part: part in asked for part in PARTS},
        PAST_COUNTS: counting and top * case.vocabulary >= INT32_LIMIT,
        PAST_TOKENS: reading and top * case.longest >= INT32_LIMIT,
        PAST_ROWS: bool(rows[-1]) and (len(rows) - 1) * case.row_stride >= INT32_LIMIT,
        DRAFTED: any(each.drafts for each in requests),
        RESUMED: any(each.resumed for each in requests),
        SAMPLED: any(each.sampled for each in requests),
        REUSED: observation.reused,
        PERMUTED: list(case.order) != sorted(case.order),
        MIXED: any(rows) and not all(rows),
        WORD_EDGE: case.vocabulary % WORD_BITS == 1,
        TILE_EDGE: case.vocabulary % PENALTY_TILE == 1,
        LONG_PROMPT: any(each.prompt > COUNT_TILE for each in requests),
        GREEDY: any(not each.temperature and each.min_p for each in requests),
        ALLOWED: any(each.allowed for each in requests) and "bias" in asked,
        BANNED: any(each.output < each.min_tokens for each in biased),
        FREED: any(0 < each.min_tokens <= each.output for each in biased),
        LAST_BAN: any(_just_freed(each) for each in biased),
        WORDS: any(len(word) > 1 for each in worded for word in each.bad_words),
        DRAFT_WORDS: any(
            each.drafts and len(word) > 1 for each in worded for word in each.bad_words
        ),
    }
    return frozenset(label for label, seen in shown.items() if seen)


def _just_freed(one: Request) -> bool:
    """Whether a row comes when just `min_tokens` tokens have been put out."""
    rows = range(one.output, one.output + one.drafts + 1)
    return one.min_tokens > 0 and one.min_tokens in rows
