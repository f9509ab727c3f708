"""Drafts are accepted, rejected and replaced as the rule of rejection sampling says.

Every access is judged by `invariants.memory`; what comes out is compared with the rule
in float64 (`invariants.rejection_rows`), given the random numbers that were used.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.rejection_case import Case
from invariants.verify_case import INT32_LIMIT

TARGET = "rejection_sampler"
# Tokens of the vocabulary that one step of a kernel's loop takes, in both runners.
VOCAB_BLOCK = 8192

PAST_ELEMENTS = "row of logits beyond 2^31 elements"
PAST_BYTES = "row of logits beyond 2^31 bytes, not elements"
EMPTY = "a request without drafts"
ALL_GREEDY = "all greedy"
ALL_RANDOM = "all random"
MIXED = "greedy and random"
CERTAIN = "drafts without probabilities"
BLOCK_EDGE = "vocabulary at the edge of a block"
TOGETHER = "drafts verified as a block"
COMPARED = "tokens compared"
REJECTED = "a draft is rejected"
TAKEN = "every draft of a request is accepted"
ACCEPTED_SOME = "some drafts of a request are accepted"

_SHAPES = ("v1", "v2", EMPTY, BLOCK_EDGE)
_KINDS = ("right", "open", "never", "same", "certain")
_ENDS = (REJECTED, TAKEN, ACCEPTED_SOME)

EXACT = Invariant(
    id="REJECTION-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=(PAST_ELEMENTS, PAST_BYTES),
    contract=(PAST_ELEMENTS, PAST_BYTES),
)
OWNED = Invariant(
    id="REJECTION-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument; a placeholder draft indexes "
        "nothing."
    ),
    severity="corruption",
    wired=_SHAPES,
    contract=(*_SHAPES, "placeholder"),
)
STORES = Invariant(
    id="REJECTION-STORES",
    target=TARGET,
    statement=(
        "A launch stores to its outputs only, and no two programs store different "
        "numbers to one element."
    ),
    severity="corruption",
    wired=_SHAPES,
    contract=_SHAPES,
)
SCRATCH = Invariant(
    id="REJECTION-SCRATCH",
    target=TARGET,
    statement="What one kernel reads of a scratch tensor, one before it has stored.",
    severity="corruption",
    wired=_SHAPES,
    contract=_SHAPES,
)
RAISES = Invariant(
    id="REJECTION-RAISES",
    target=TARGET,
    statement="A step that the sampler's asserts allow raises nothing.",
    severity="crash",
    wired=_SHAPES,
    contract=_SHAPES,
)
GREEDY = Invariant(
    id="REJECTION-GREEDY",
    target=TARGET,
    statement=(
        "A greedy request gets its drafts as far as they are the target's best tokens, "
        "then the best token, or the bonus token after the last draft; no more."
    ),
    severity="corruption",
    wired=(COMPARED, ALL_GREEDY, MIXED, *_ENDS),
    contract=(COMPARED, ALL_GREEDY, MIXED, "placeholder", *_ENDS),
)
RANDOM = Invariant(
    id="REJECTION-RANDOM",
    target=TARGET,
    statement=(
        "Another request gets its drafts as far as their probabilities and the random "
        "numbers accept them, then a token of the residual, or the bonus token; no "
        "more. V2's numbers are its own: any that leave a choice may have made it."
    ),
    severity="corruption",
    wired=(COMPARED, ALL_RANDOM, MIXED, CERTAIN, *_KINDS, *_ENDS),
    contract=(
        *(COMPARED, ALL_RANDOM, MIXED, CERTAIN, "placeholder", "undrafted"),
        *_KINDS,
        *_ENDS,
    ),
)
VOCABULARY = Invariant(
    id="REJECTION-VOCABULARY",
    target=TARGET,
    statement="Every token that is sampled or recovered is in the vocabulary.",
    severity="crash",
    wired=(COMPARED, BLOCK_EDGE, "same", "certain"),
    contract=(COMPARED, BLOCK_EDGE, "same", "certain", "broken"),
)
EXPANDED = Invariant(
    id="REJECTION-EXPANDED",
    target=TARGET,
    statement="Each draft gets its own request's value, replaced where it should be.",
    severity="corruption",
    wired=("v1", EMPTY, COMPARED),
    contract=("v1", EMPTY, COMPARED),
)
INVARIANTS = (
    *(EXACT, OWNED, STORES, SCRATCH, RAISES),
    *(GREEDY, RANDOM, VOCABULARY, EXPANDED),
)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES, scratch=SCRATCH)


What = Literal["accepted", "recovered", "bonus", "rest"]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The first token of a row that cannot be right.

    Attributes:
        what: What should have been there: the draft itself, a recovered token, the
            bonus token, or nothing more.
    """

    what: What
    greedy: bool
    request: int
    position: int
    got: int
    expected: str


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A token id that no vocabulary has.

    Attributes:
        where: `sampled`, or `recovered` tokens of which none need have been taken.
    """

    where: str
    token: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a step did.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the sampler.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        rows: ``[requests]`` sampled token ids without placeholders; () in address mode.
        mismatches: At most one for each request.
        strays: Ids outside of the vocabulary.
        expanded: What is wrong with the values of drafts, "" for nothing.
    """

    skipped: str = ""
    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    strays: tuple[Stray, ...] = ()
    expanded: str = ""


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one step; tokens are judged where every access was right."""
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=observation.skipped
    )
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, STORES.id, SCRATCH.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if not case.far and not observation.findings:
        judged.add(VOCABULARY.id)
        judged |= {GREEDY.id} if any(case.greedy) else set()
        judged |= {RANDOM.id} if not all(case.greedy) else set()
        judged |= {EXPANDED.id} if case.runner == "v1" else set()
        violations = tuple(_tokens(case, observation))
    return Judgement(
        judged=frozenset(judged),
        violations=violations,
        labels=_labels(case, observation),
    )


def _tokens(case: Case, observation: Observation) -> list[Violation]:
    """One of each law and place; a token of no vocabulary is no wrong one as well."""
    found: dict[str, Violation] = {}

    def add(law: Invariant, part: str, message: str) -> None:
        found.setdefault(
            f"{law.id}{part}",
            Violation(
                invariant=law.id,
                target=TARGET,
                origin=case.origin,
                site=f"{case.runner}: {part}",
                message=message,
                evidence={"counts": list(case.counts)},
            ),
        )

    for each in observation.strays:
        add(
            VOCABULARY,
            each.where,
            f"{each.count} {each.where} tokens are outside of {case.vocab}: "
            f"{each.token}",
        )
    for wrong in observation.mismatches if not observation.strays else ():
        add(
            GREEDY if wrong.greedy else RANDOM,
            wrong.what,
            f"request {wrong.request}, position {wrong.position}: {wrong.got}, "
            f"expected {wrong.expected}",
        )
    if observation.expanded:
        add(EXPANDED, "expand", observation.expanded)
    return list(found.values())


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    offset, requests = case.top_offset, zip(observation.rows, case.counts, strict=False)
    taken = {(len(row) - 1, count) for row, count in requests if count}
    shown = {
        case.runner: True,
        PAST_ELEMENTS: offset >= INT32_LIMIT,
        PAST_BYTES: offset < INT32_LIMIT <= 4 * offset,
        EMPTY: 0 in case.counts,
        ALL_GREEDY: all(case.greedy),
        ALL_RANDOM: not any(case.greedy),
        MIXED: any(case.greedy) and not all(case.greedy),
        CERTAIN: not case.drafted and not all(case.greedy),
        BLOCK_EDGE: (case.vocab + 1) % VOCAB_BLOCK in (0, 1, 2),
        TOGETHER: case.block and not all(case.greedy),
        COMPARED: not case.far,
        REJECTED: any(accepted < count for accepted, count in taken),
        TAKEN: any(accepted == count for accepted, count in taken),
        ACCEPTED_SOME: any(0 < accepted < count for accepted, count in taken),
    } | dict.fromkeys(case.kinds_of_drafts, True)
    return frozenset(label for label, seen in shown.items() if seen)
