"""Staged writes land in their rows when they are applied, and nowhere else.

Every access is judged by `invariants.memory`; rows that are written, and those beside
them, are compared with rows kept as plain lists.
"""

from collections import Counter
from dataclasses import dataclass

from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.staged_writes_case import DIMS, ITEM_BYTES, TILE, Case, Write
from invariants.verify_case import INT32_LIMIT

TARGET = "staged_writes"
KERNEL = "_apply_write_kernel"

PAST_ELEMENTS = "row beyond 2^31 elements"
PAST_BYTES = "row beyond 2^31 bytes, not elements"
LAST_ROW = "last row of the tensor"
ROW_END = "write up to a row's end"
TILE_EDGE = "length at a tile's edge"
BEYOND_TILE = "length one past a tile's edge"
OFFSET = "write that starts within its row"
EXTENDED = "several writes to one row"
NOTHING = "nothing staged"
EMPTY = "write of no elements"
CLEARED = "cleared, not applied"
TWICE = "applied twice"
MORE = "more writes than rows"
SINGLE = "tensor of one axis"
PINNED = "tensor in the host's memory"
REUSED = "row of a request that has ended"
COMPUTED = "request with computed tokens"

_WIRED = ("requests", "positions")
_CONTRACT = ("tensor", "tensors", "int32", "int64", "float32")
_LENGTHS = (TILE_EDGE, BEYOND_TILE)

EXACT = Invariant(
    id="STAGED-WRITE-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=(PAST_ELEMENTS, PAST_BYTES, LAST_ROW),
    contract=(PAST_ELEMENTS, PAST_BYTES, LAST_ROW),
)
OWNED = Invariant(
    id="STAGED-WRITE-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument, and every store in a row that "
        "the batch has staged a write for."
    ),
    severity="corruption",
    wired=(LAST_ROW, *_LENGTHS, *_WIRED),
    contract=(LAST_ROW, ROW_END, EMPTY, NOTHING, CLEARED, *_LENGTHS, *_CONTRACT),
)
STORES = Invariant(
    id="STAGED-WRITE-STORES",
    target=TARGET,
    statement=(
        "A launch stores to the tensors only, and no two programs store different "
        "numbers to one element."
    ),
    severity="corruption",
    wired=_WIRED,
    contract=(EXTENDED, TWICE, *_CONTRACT),
)
RAISES = Invariant(
    id="STAGED-WRITE-RAISES",
    target=TARGET,
    statement="Staging and applying writes that fit their rows raises nothing.",
    severity="crash",
    wired=_WIRED,
    contract=(MORE, SINGLE, PINNED, *_CONTRACT),
)
VALUES = Invariant(
    id="STAGED-WRITE-VALUES",
    target=TARGET,
    statement=(
        "Once applied, a row has what each write staged for it; rows beside it, the "
        "rest of the row and whatever was cleared stay as they were."
    ),
    severity="corruption",
    wired=(REUSED, COMPUTED, *_LENGTHS, *_WIRED),
    contract=(OFFSET, EXTENDED, CLEARED, TWICE, *_LENGTHS, *_CONTRACT),
)
INVARIANTS = (EXACT, OWNED, STORES, RAISES, VALUES)

_ACCESSES = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The first element that is not what it must be.

    Attributes:
        tensor: Of the case, or the owner's name of it.
    """

    batch: int
    tensor: str
    row: int
    column: int
    got: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the batches did, as far as nothing was found.

    Attributes:
        raised: What escaped staging or applying.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        top_rows: Highest row written of each tensor, -1 for none; which rows wired
            requests have is the release's choice.
        reused: Whether a request got the row of one that had ended.
    """

    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    mismatch: Mismatch | None = None
    top_rows: tuple[int, ...] = ()
    reused: bool = False


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one sequence of batches."""
    labels = _labels(case, observation)
    early = settled(observation, raises=RAISES, origin=case.origin, labels=labels)
    if early is not None:
        return early
    judged = {EXACT.id, OWNED.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if not observation.findings:
        judged.add(VALUES.id)
        wrong = observation.mismatch
        if wrong is not None:
            message = (
                f"after batch {wrong.batch}, {wrong.tensor} has {wrong.got} in row "
                f"{wrong.row}, column {wrong.column}; expected {wrong.expected}"
            )
            site = KERNEL if wrong.tensor.isdigit() else f"{KERNEL}: {wrong.tensor}"
            violations = (_violation(case, VALUES, site, message),)
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
        evidence={"rows": case.rows, "columns": list(case.columns)},
        exception=exception,
    )


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    writes = [each for batch in case.batches for each in batch.writes]
    wired = case.origin == "wired"
    full = [each for each in writes if each.length]
    rows = case.rows * (DIMS if case.form == "positions" else 1)
    first = [
        row * max(columns, 1)
        for row, columns in zip(observation.top_rows, case.columns, strict=False)
    ]
    size = ITEM_BYTES[case.dtype]
    shown = {
        case.form: True,
        case.dtype: True,
        PAST_ELEMENTS: any(each >= INT32_LIMIT for each in first),
        PAST_BYTES: any(each < INT32_LIMIT <= each * size for each in first),
        LAST_ROW: rows - 1 in observation.top_rows,
        ROW_END: any(_to_the_end(case, each) for each in full),
        TILE_EDGE: any(each.length % TILE == 0 for each in full),
        BEYOND_TILE: any(
            each.length > TILE and each.length % TILE == 1 for each in full
        ),
        OFFSET: not wired and any(each.start for each in full),
        EXTENDED: not wired and any(_extends(each.writes) for each in case.batches),
        NOTHING: any(not each.writes for each in case.batches),
        EMPTY: len(full) < len(writes),
        CLEARED: any(each.ending == "cleared" for each in case.batches),
        TWICE: any(each.ending == "applied twice" for each in case.batches),
        MORE: not wired and any(_exceeds(case, each.writes) for each in case.batches),
        SINGLE: 0 in case.columns,
        PINNED: case.pinned,
        REUSED: observation.reused,
        COMPUTED: wired and any(each.start for each in writes),
    }
    return frozenset(label for label, seen in shown.items() if seen)


def _to_the_end(case: Case, write: Write) -> bool:
    end = write.length if case.origin == "wired" else write.end
    return end == max(case.columns[write.tensor], 1)


def _extends(writes: tuple[Write, ...]) -> bool:
    rows = Counter((each.tensor, each.row) for each in writes if each.length)
    return max(rows.values(), default=0) > 1


def _exceeds(case: Case, writes: tuple[Write, ...]) -> bool:
    counts = Counter(each.tensor for each in writes if each.length)
    return max(counts.values(), default=0) > case.rows
