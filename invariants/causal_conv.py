"""The causal convolution goes on from its own window, leaves it right, and no other.

Every access is judged by `invariants.memory`; in value mode outputs are compared with
the convolution in float64, and windows, which are copies, bit for bit.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.causal_conv_case import (
    CHUNK_TOKENS,
    KERNELS,
    TILE_CHANNELS,
    Case,
)
from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import INT32_LIMIT, ITEM_BYTES

TARGET = "causal_conv"

PAST_ELEMENTS = "window beyond 2^31 elements"
PAST_BYTES = "window beyond 2^31 bytes, not elements"
LAST_BLOCK = "last block of the pool"
PADDED = "rows of padding"
NO_TOKENS = "rows without tokens"
SHORT = "fewer tokens than a window has"
WHOLE_CHUNK = "a whole chunk of tokens"
PAST_CHUNK = "one token past a chunk"
STARTED = "a prompt that goes on"
FRESH = "a prompt without a window"
TILES = "more channels than a tile"
REJECTED = "drafts of the last step rejected"
ACCEPTED = "all drafts of the last step accepted"
UNEVEN = "fewer drafts than other rows"
DISCARDED = "no token of the last step accepted"
COMPARED = "floats compared"

_FORMS = ("prefill", "decode", "verify")
_FAR = (PAST_ELEMENTS, PAST_BYTES, LAST_BLOCK)
_PROMPTS = (SHORT, WHOLE_CHUNK, PAST_CHUNK, STARTED, FRESH)
_DRAFTS = (REJECTED, ACCEPTED, UNEVEN)

EXACT = Invariant(
    id="CONV-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=(*_FAR, *_FORMS),
    contract=(*_FAR, *_FORMS),
)
OWNED = Invariant(
    id="CONV-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument; a row reads and writes the "
        "window of its own block only, rows of padding none, and a prompt without a "
        "window before it reads none."
    ),
    severity="corruption",
    wired=(LAST_BLOCK, PADDED, NO_TOKENS, *_PROMPTS, *_DRAFTS),
    contract=(LAST_BLOCK, PADDED, NO_TOKENS, *_PROMPTS, *_DRAFTS, DISCARDED),
)
STORES = Invariant(
    id="CONV-STORES",
    target=TARGET,
    statement=(
        "A launch stores to outputs and windows only, and no two programs store "
        "different numbers to one element."
    ),
    severity="corruption",
    wired=(*_FORMS, TILES),
    contract=(*_FORMS, TILES),
)
RAISES = Invariant(
    id="CONV-RAISES",
    target=TARGET,
    statement="A launch that the wrapper's asserts allow raises nothing.",
    severity="crash",
    wired=_FORMS,
    contract=_FORMS,
)
OUTPUT = Invariant(
    id="CONV-OUTPUT",
    target=TARGET,
    statement=(
        "Each token's output is the convolution of the inputs that its request has "
        "accepted before it; rows of padding keep what they had."
    ),
    severity="corruption",
    wired=(COMPARED, *_PROMPTS, *_DRAFTS, PADDED),
    contract=(COMPARED, *_PROMPTS, *_DRAFTS, PADDED),
)
WINDOW = Invariant(
    id="CONV-WINDOW",
    target=TARGET,
    statement=(
        "A row's window then ends in the row's last inputs, from which every number of "
        "accepted tokens can be gone on from; what it does not use stays as it was."
    ),
    severity="corruption",
    wired=(COMPARED, *_PROMPTS, *_DRAFTS, PADDED),
    contract=(COMPARED, *_PROMPTS, *_DRAFTS, PADDED),
)
# That the rest of a page stays as it was is a matter of OWNED: it lies in no view.
INVARIANTS = (EXACT, OWNED, STORES, RAISES, OUTPUT, WINDOW)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The element that is furthest from what it must be.

    Attributes:
        tensor: Whether it is of the output or of a window.
        elements: How many are wrong.
        row: Of the batch.
        at: Token of the row, or column of its window.
        got: As text, for JSON has no NaN.
    """

    tensor: Literal["output", "window"]
    elements: int
    row: int
    at: int
    channel: int
    got: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a launch did.

    Attributes:
        raised: What escaped the wrapper.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        mismatches: At most one of each tensor; () in address mode.
    """

    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one launch; contents are judged where every access was right."""
    early = settled(observation, raises=RAISES, origin=case.origin)
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if case.compared and not observation.findings:
        judged |= {OUTPUT.id, WINDOW.id}
        violations = _contents(case, observation)
    return Judgement(
        judged=frozenset(judged), violations=violations, labels=_labels(case)
    )


def _contents(case: Case, observation: Observation) -> tuple[Violation, ...]:
    return tuple(
        _violation(
            case,
            OUTPUT if each.tensor == "output" else WINDOW,
            f"{each.elements} elements of the {each.tensor} are wrong; row {each.row}, "
            f"{'token' if each.tensor == 'output' else 'column'} {each.at}, channel "
            f"{each.channel} is {each.got}, expected {each.expected}",
        )
        for each in observation.mismatches
    )


def _violation(case: Case, law: Invariant, message: str) -> Violation:
    return Violation(
        invariant=law.id,
        target=TARGET,
        origin=case.origin,
        site=f"{KERNELS[case.form]}: {case.form}",
        message=message,
        evidence={"blocks": list(case.blocks)},
    )


def _labels(case: Case) -> frozenset[str]:
    rows = [row for row in case.rows if row.runs]
    prompts = rows if case.form == "prefill" else []
    verified = rows if case.form == "verify" else []
    offset = case.blocks[-1] * case.page
    tokens = {row.tokens for row in prompts}
    shown = {
        case.form: True,
        case.dtype: True,
        PAST_ELEMENTS: offset >= INT32_LIMIT,
        PAST_BYTES: offset < INT32_LIMIT <= offset * ITEM_BYTES[case.dtype],
        LAST_BLOCK: case.blocks[-1] == case.pool_blocks - 1,
        PADDED: any(row.block == NULL_BLOCK for row in case.rows),
        NO_TOKENS: any(row.tokens == 0 for row in case.rows),
        SHORT: any(count < case.width - 1 for count in tokens),
        WHOLE_CHUNK: any(count % CHUNK_TOKENS == 0 for count in tokens),
        PAST_CHUNK: any(count % CHUNK_TOKENS == 1 < count for count in tokens),
        STARTED: any(row.started for row in prompts),
        FRESH: any(not row.started for row in prompts),
        TILES: case.channels > TILE_CHANNELS,
        REJECTED: any(0 < row.accepted < 1 + case.drafts for row in verified),
        ACCEPTED: any(row.accepted == 1 + case.drafts > 1 for row in verified),
        UNEVEN: any(row.tokens < 1 + case.drafts for row in verified),
        DISCARDED: any(row.accepted == 0 for row in verified),
        COMPARED: case.compared,
    }
    return frozenset(label for label, seen in shown.items() if seen)
