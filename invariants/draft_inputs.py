"""The next step's inputs are what sampled tokens and drafts make them.

Every access is judged by `invariants.memory`; the kernels' outputs are compared with
plain lists (`invariants.draft_inputs_model`), what they must leave alone included.
"""

from dataclasses import dataclass

from invariants.draft_inputs_case import Case
from invariants.draft_inputs_model import UNTOUCHED, expected
from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.verify_case import INT32_LIMIT

TARGET = "draft_inputs"

PAST_HISTORY = "a request's tokens beyond 2^31 elements"
PAST_BYTES = "a request's tokens beyond 2^31 bytes, not elements"
PAST_SLOTS = "slot beyond 2^31"
PARTIAL = "a chunk that samples nothing"
REJECTED = "a draft is rejected"
TAKEN = "every draft is accepted"
UNDRAFTED = "a decode without drafts"
CLIPPED = "a request at its longest"
PADDED = "rows of padding"
SPARSE = "more states than requests"
LONG = "more tokens than a kernel's block"
TAIL = "drafts behind a prompt's last tokens"
SHIFTED = "tokens shifted by one"
UNSHIFTED = "tokens as they are"

_V1 = ("next_tokens", "step", "expand")
_V2 = ("inputs", "update")
_FORMS = (*_V1, *_V2)
_ROWS = (PARTIAL, REJECTED, TAKEN, UNDRAFTED)
_SHAPES = (CLIPPED, PADDED, SPARSE, LONG, SHIFTED, UNSHIFTED)
# Blocks of the kernels, V1's and V2's.
_BLOCK = {"expand": 256, "inputs": 1024}

EXACT = Invariant(
    id="DRAFT-INPUTS-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=(PAST_HISTORY, PAST_BYTES),
    contract=(PAST_HISTORY, PAST_BYTES),
)
OWNED = Invariant(
    id="DRAFT-INPUTS-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument and in the rows of the step's "
        "own requests."
    ),
    severity="corruption",
    wired=(*_FORMS, *_ROWS, *_SHAPES),
    contract=(*_FORMS, *_ROWS, *_SHAPES),
)
STORES = Invariant(
    id="DRAFT-INPUTS-STORES",
    target=TARGET,
    statement=(
        "A launch stores to its outputs only, and no two programs store different "
        "numbers to one element."
    ),
    severity="corruption",
    wired=_FORMS,
    contract=_FORMS,
)
SCRATCH = Invariant(
    id="DRAFT-INPUTS-SCRATCH",
    target=TARGET,
    statement="What one kernel reads of a scratch tensor, one before it has stored.",
    severity="corruption",
    wired=_FORMS,
    contract=_FORMS,
)
RAISES = Invariant(
    id="DRAFT-INPUTS-RAISES",
    target=TARGET,
    statement="A step of a batch that a scheduler makes raises nothing.",
    severity="crash",
    wired=_FORMS,
    contract=_FORMS,
)
VALUES = Invariant(
    id="DRAFT-INPUTS-VALUES",
    target=TARGET,
    statement=(
        "Tokens, positions, slots, lengths and counts of the next step are those of "
        "the sampled tokens and drafts."
    ),
    severity="corruption",
    wired=(*_FORMS, *_ROWS, *_SHAPES),
    contract=(*_FORMS, *_ROWS, *_SHAPES, TAIL, PAST_SLOTS),
)
KEEPS = Invariant(
    id="DRAFT-INPUTS-KEEPS",
    target=TARGET,
    statement="What a step has no word about stays as it was.",
    severity="corruption",
    wired=("step", "expand", *_V2, PADDED, SPARSE),
    contract=("step", "expand", *_V2, PADDED, SPARSE),
)
INVARIANTS = (EXACT, OWNED, STORES, SCRATCH, RAISES, VALUES, KEEPS)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES, scratch=SCRATCH)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a kernel left in one tensor, flat."""

    name: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the launches of a step did.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the tree.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        outputs: What was made; () where an access was wrong.
        stray: Tensors that changed in other places.
    """

    skipped: str = ""
    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    outputs: tuple[Output, ...] = ()
    stray: tuple[str, ...] = ()


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one step; outputs are judged where every access was right."""
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=observation.skipped
    )
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, STORES.id, SCRATCH.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if not observation.findings:
        judged |= {VALUES.id, KEEPS.id}
        violations = tuple(_compared(case, observation))
    return Judgement(
        judged=frozenset(judged), violations=violations, labels=_labels(case)
    )


def _compared(case: Case, observation: Observation) -> list[Violation]:
    """The first wrong number of each output; what changed beside them."""
    found: list[Violation] = []

    def add(law: Invariant, name: str, message: str) -> None:
        found.append(
            Violation(
                invariant=law.id,
                target=TARGET,
                origin=case.origin,
                site=f"{case.form}: {name}",
                message=message,
                evidence={"starts": list(case.starts)},
            )
        )

    model = expected(case)
    seen = {each.name: each.numbers for each in observation.outputs}
    for name, numbers in model.items():
        got = seen.get(name, ())
        if len(got) != len(numbers):
            add(VALUES, name, f"{len(got)} numbers, expected {len(numbers)}")
            continue
        for at, (number, wanted) in enumerate(zip(got, numbers, strict=True)):
            if wanted is not None and number != wanted:
                kept = wanted == UNTOUCHED
                text = "untouched" if kept else str(wanted)
                message = f"element {at} is {number}, expected {text}"
                add(KEEPS if kept else VALUES, name, message)
                break
    for name in observation.stray:
        add(KEEPS, name, "changed for requests that are not in the step")
    return found


def _labels(case: Case) -> frozenset[str]:
    requests = case.requests
    # Of the last state, which is a request's.
    tokens = (case.states - 1) * case.longest if case.form in _V2 else 0
    slots = expected(case).get("slot_mapping", ()) if case.blocks else ()
    longest = max(each.query for each in requests)
    shown = {
        case.form: True,
        PAST_HISTORY: tokens >= INT32_LIMIT,
        PAST_BYTES: tokens < INT32_LIMIT <= 4 * tokens,
        PAST_SLOTS: any(slot is not None and slot >= INT32_LIMIT for slot in slots),
        PARTIAL: any(each.partial for each in requests),
        REJECTED: any(each.rejected for each in requests),
        TAKEN: any(each.drafts and not each.rejected for each in requests),
        UNDRAFTED: any(
            not each.drafts and each.context >= each.prompt for each in requests
        ),
        CLIPPED: any(each.length == case.longest for each in requests),
        PADDED: case.form == "step" and case.padded > len(requests),
        SPARSE: case.form in _V2 and case.states > len(requests),
        LONG: longest > _BLOCK.get(case.form, longest),
        TAIL: any(each.tail for each in requests),
        SHIFTED: case.form == "expand" and case.shifted,
        UNSHIFTED: case.form == "expand" and not case.shifted,
    }
    return frozenset(label for label, seen in shown.items() if seen)
