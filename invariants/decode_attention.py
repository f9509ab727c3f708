"""Decode attention over a paged cache, both stages: its laws, and their judgement.

Every access is judged by `invariants.memory`; in value mode output and log-sum-exp of
each row are compared with dense float64 attention as well.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.decode_case import Case
from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.verify_case import INT32_LIMIT

TARGET = "decode_attention"

PAST_ELEMENTS = "token offset beyond 2^31 elements"
PAST_BYTES = "token offset beyond 2^31 bytes, not elements"
PAST_SCRATCH = "scratch offset beyond 2^31 elements"
LAST_BLOCK = "last block of the pool"
SHARED = "shared prefix block"
RAGGED = "ragged batch"
PADDED = "row without tokens"
SHORT = "fewer tokens than splits"
SPLIT = "several splits"
TILE_EDGE = "a tile of 32 tokens, or one beside"
SEVERAL = "several query tokens each"
ALONE = "a KV head for every query head"
WIDE_GROUP = "several groups, each wider than a tile of heads"
CAPPED = "scores are capped"
COMPARED = "output compared"
_STAGE = {True: "_fwd_kernel_stage1", False: "_fwd_grouped_kernel_stage1"}
_TILE, _TILE_HEADS = 32, 16

_FAR = (PAST_ELEMENTS, PAST_BYTES, LAST_BLOCK)
_ROWS = (RAGGED, SHARED, PADDED, SHORT, TILE_EDGE, ALONE)
_LAID_OUT = ("sliced", "heads", CAPPED, WIDE_GROUP)

EXACT = Invariant(
    id="DECODE-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=_FAR,
    contract=(*_FAR, PAST_SCRATCH, "sliced", "heads"),
)
OWNED = Invariant(
    id="DECODE-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument and in a block that the batch "
        "owns; rows without tokens read none."
    ),
    severity="corruption",
    wired=(LAST_BLOCK, *_ROWS),
    contract=(LAST_BLOCK, *_ROWS, "sliced", "heads"),
)
SCRATCH = Invariant(
    id="DECODE-SCRATCH",
    target=TARGET,
    statement="The second stage reads only such splits as the first has stored.",
    severity="corruption",
    wired=(SPLIT, SHORT, PADDED),
    contract=(SPLIT, SHORT, PADDED),
)
STORES = Invariant(
    id="DECODE-STORES",
    target=TARGET,
    statement=(
        "A launch stores to output, log-sum-exp and scratch only, and no two programs "
        "store different numbers to one element."
    ),
    severity="corruption",
    wired=_ROWS,
    contract=_ROWS,
)
RAISES = Invariant(
    id="DECODE-RAISES",
    target=TARGET,
    statement="A launch that the wrapper's asserts allow raises nothing.",
    severity="crash",
    wired=_ROWS,
    contract=(*_ROWS, *_LAID_OUT),
)
VALUES = Invariant(
    id="DECODE-VALUES",
    target=TARGET,
    statement=(
        "Each row's output is dense attention over its request's tokens, within the "
        "rounding that dtype and number of tokens allow."
    ),
    severity="corruption",
    wired=(COMPARED, "bfloat16", "float16", "fp8", *_ROWS),
    contract=(COMPARED, "bfloat16", "float16", "fp8", *_ROWS, *_LAID_OUT),
)
LSE = Invariant(
    id="DECODE-LSE",
    target=TARGET,
    statement=(
        "Each row's log-sum-exp is that of its scores; without tokens it is -inf, so "
        "that merging with other ranks gives the row no weight."
    ),
    severity="corruption",
    wired=(COMPARED, PADDED, SPLIT),
    contract=(COMPARED, PADDED, SPLIT, CAPPED),
)
INVARIANTS = (EXACT, OWNED, SCRATCH, STORES, RAISES, VALUES, LSE)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES, scratch=SCRATCH)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The element whose error is the most times what is allowed.

    Attributes:
        outside: Elements beyond their tolerance; NaN counts.
        dim: 0 of a log-sum-exp.
        got: As text, for JSON has no NaN.
    """

    kind: Literal["output", "lse"]
    outside: int
    row: int
    head: int
    dim: int
    got: str
    expected: str
    allowed: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What both stages did.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the wrapper.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        splits: Parts that a row's tokens are split into.
        block_stride: Of the keys, in elements.
        element_bytes: Of the cache.
        scratch_stride: From row to row of the scratch, in elements.
        mismatches: At most one of each kind, the output's first; () in address mode.
    """

    skipped: str = ""
    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    splits: int = 0
    block_stride: int = 0
    element_bytes: int = 0
    scratch_stride: int = 0
    mismatches: tuple[Mismatch, ...] = ()


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one launch; outputs are judged where every access was right."""
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=observation.skipped
    )
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, SCRATCH.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if case.compared and not observation.findings:
        judged.add(VALUES.id)
        violations = tuple(_wrong(case, each) for each in observation.mismatches[:1])
        # Where both are wrong the output is told, and of the sum nothing is said.
        if len(observation.mismatches) < 2:
            judged.add(LSE.id)
    return Judgement(
        judged=frozenset(judged),
        violations=violations,
        labels=_labels(case, observation),
    )


def _wrong(case: Case, found: Mismatch) -> Violation:
    law = VALUES if found.kind == "output" else LSE
    return Violation(
        invariant=law.id,
        target=TARGET,
        origin=case.origin,
        site=f"{_STAGE[case.group == 1]}: {found.kind}",
        message=(
            f"{found.outside} elements of the {found.kind} are beyond their tolerance; "
            f"row {found.row}, head {found.head}, dim {found.dim} is {found.got}, "
            f"expected {found.expected} within {found.allowed}"
        ),
        evidence={
            "at": [found.row, found.head, found.dim],
            "got": found.got,
            "expected": found.expected,
            "allowed": found.allowed,
        },
    )


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    offset = case.top_block * observation.block_stride
    tokens = case.row_tokens
    last = case.rows - 1 - next(at for at, seen in enumerate(reversed(tokens)) if seen)
    shown = {
        case.form: True,
        case.dtype: True,
        case.cache: True,
        PAST_ELEMENTS: offset >= INT32_LIMIT,
        PAST_BYTES: offset < INT32_LIMIT <= offset * observation.element_bytes,
        PAST_SCRATCH: last * observation.scratch_stride >= INT32_LIMIT,
        LAST_BLOCK: case.top_block == case.layout.pool_blocks - 1,
        SHARED: case.shared,
        RAGGED: len(set(tokens)) > 1,
        PADDED: 0 in tokens,
        SHORT: any(0 < each < observation.splits for each in tokens),
        SPLIT: observation.splits > 1,
        TILE_EDGE: any(each and (each + 1) % _TILE < 3 for each in tokens),
        SEVERAL: case.query_len > 1,
        ALONE: case.group == 1,
        WIDE_GROUP: case.kv_heads > 1 and case.group > _TILE_HEADS,
        CAPPED: case.logit_cap > 0,
        COMPARED: case.compared,
    }
    return frozenset(label for label, seen in shown.items() if seen)
