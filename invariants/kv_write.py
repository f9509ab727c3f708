"""A step's keys and values land in their slots, and nothing else changes.

Every access is judged by `invariants.memory`; in value mode the cache is compared with
a plain model as well: a row for each slot, as the step's tensors have it.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.kernel_laws import KernelLaws, settled
from invariants.kv_write_case import KERNELS, PADDING_SLOT, Case
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.verify_case import INT32_LIMIT

TARGET = "kv_write"

PAST_ELEMENTS = "block offset beyond 2^31 elements"
PAST_BYTES = "block offset beyond 2^31 bytes, not elements"
PAST_SCALES = "scale offset beyond 2^31"
PAST_HEADS = "head offset beyond 2^31 elements"
PAST_SLOTS = "slot beyond 2^31"
LAST_BLOCK = "last block of the pool"
PADDED = "tokens that are not written"

_FAR = (PAST_ELEMENTS, PAST_BYTES, LAST_BLOCK)
_FORMS = ("flash", "per_token_head")
_STORED = ("auto", "fp8", "int8_per_token_head", "fp8_per_token_head")


def compared_label(form: str) -> str:
    """Label of the cases of a form whose cache was compared."""
    return f"{form}, cache compared"


EXACT = Invariant(
    id="KV-WRITE-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=(*_FAR, PAST_SCALES),
    contract=(*_FAR, PAST_SCALES, PAST_HEADS, PAST_SLOTS),
)
OWNED = Invariant(
    id="KV-WRITE-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument, and every store to the cache "
        "in a block that slot_mapping names; tokens at slot -1 store nothing."
    ),
    severity="corruption",
    wired=(LAST_BLOCK, PADDED, *_FORMS),
    contract=(LAST_BLOCK, PADDED, *_FORMS, "heads_first", "diffkv"),
)
STORES = Invariant(
    id="KV-WRITE-STORES",
    target=TARGET,
    statement=(
        "A launch stores to the cache only, and no two programs store different "
        "numbers to one element."
    ),
    severity="corruption",
    wired=_FORMS,
    contract=_FORMS,
)
RAISES = Invariant(
    id="KV-WRITE-RAISES",
    target=TARGET,
    statement="A launch that the wrapper's asserts allow raises nothing.",
    severity="crash",
    wired=_FORMS,
    contract=_FORMS,
)
VALUES = Invariant(
    id="KV-WRITE-VALUES",
    target=TARGET,
    statement=(
        "Each token's keys and values are in its slot: as they are, or the nearest "
        "that the quantised cache has."
    ),
    severity="corruption",
    wired=(*_STORED, *map(compared_label, _FORMS)),
    contract=(*_STORED, *map(compared_label, KERNELS)),
)
KEEPS = Invariant(
    id="KV-WRITE-KEEPS",
    target=TARGET,
    statement="Everything else in the blocks that are written to stays as it was.",
    severity="corruption",
    wired=tuple(map(compared_label, _FORMS)),
    contract=tuple(map(compared_label, KERNELS)),
)
INVARIANTS = (EXACT, OWNED, STORES, RAISES, VALUES, KEEPS)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The element of the written rows that is furthest from what it must be.

    Attributes:
        kind: Whether it is in a row itself or a scale of one.
        tensor: `key`, `value`, or the scales of one.
        elements: How many are wrong.
        got: As text, for JSON has no NaN.
    """

    kind: Literal["rows", "scales"]
    tensor: str
    elements: int
    slot: int
    head: int
    dim: int
    got: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a launch did.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the wrapper.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        block_stride: Of the cache, in elements.
        scale_stride: From block to block of the scales in float32, 0 without.
        head_stride: The larger one of cache and scales.
        element_bytes: Of the cache.
        mismatches: At most one for each tensor; () in address mode.
        stray: Whether the blocks changed in other places.
    """

    skipped: str = ""
    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    block_stride: int = 0
    scale_stride: int = 0
    head_stride: int = 0
    element_bytes: int = 0
    mismatches: tuple[Mismatch, ...] = ()
    stray: bool = False


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one launch; contents are judged where every access was right."""
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=observation.skipped
    )
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if case.compared and not observation.findings:
        judged.add(VALUES.id)
        if not observation.mismatches:
            judged.add(KEEPS.id)
        violations = _contents(case, observation)
    return Judgement(
        judged=frozenset(judged),
        violations=violations,
        labels=_labels(case, observation),
    )


def _contents(case: Case, observation: Observation) -> tuple[Violation, ...]:
    """One for the rows and one for their scales; what else changed where both hold."""
    found = {
        f": {each.kind}": _violation(
            case,
            VALUES,
            f"{each.elements} elements of {each.tensor} are wrong; slot {each.slot}, "
            f"head {each.head}, dim {each.dim} is {each.got}, expected {each.expected}",
            part=f": {each.kind}",
        )
        for each in reversed(observation.mismatches)
    }
    if observation.stray and not found:
        message = f"blocks {list(case.blocks)} changed beside the slots of the step"
        return (_violation(case, KEEPS, message),)
    return tuple(found.values())


def _violation(
    case: Case, law: Invariant, message: str, *, part: str = ""
) -> Violation:
    return Violation(
        invariant=law.id,
        target=TARGET,
        origin=case.origin,
        site=f"{KERNELS[case.form]}{part}",
        message=message,
        evidence={"slots": list(case.written)},
    )


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    offset = case.top_block * observation.block_stride
    shown = {
        case.form: True,
        case.dtype: True,
        case.cache: True,
        PAST_ELEMENTS: offset >= INT32_LIMIT,
        PAST_BYTES: offset < INT32_LIMIT <= offset * observation.element_bytes,
        PAST_SCALES: case.top_block * observation.scale_stride >= INT32_LIMIT,
        PAST_HEADS: (case.kv_heads - 1) * observation.head_stride >= INT32_LIMIT,
        PAST_SLOTS: max(case.slots) >= INT32_LIMIT,
        LAST_BLOCK: case.top_block == case.pool_blocks - 1,
        PADDED: PADDING_SLOT in case.slots,
        compared_label(case.form): case.compared,
    }
    return frozenset(label for label, seen in shown.items() if seen)
