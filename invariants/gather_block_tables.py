"""A step's block tables hold its requests' blocks, and those of nobody else.

The model runner V2 keeps each request's blocks in a state row. Before a step it copies
the rows of its batch, in the batch's order, into tables that a captured graph reads.
The reference is those rows as plain lists; `invariants.memory` judges every access.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Origin, Raised, Violation
from invariants.scheduling import NULL_BLOCK
from invariants.table_case import (
    TILE,
    Few,
    Group,
    Request,
    Tables,
    check_states,
    rows_of,
)

TARGET = "gather_block_tables"
KERNEL = "_gather_block_tables_kernel"

WIDTHS = "groups of different widths"
WIDE_FIRST = "first group wider than another"
NARROW_FIRST = "first group narrower than another"
PADDED = "rows that pad the batch"
FULL = "batch padded to all rows"
PERMUTED = "rows in another order than the states"
LEFT = "state row of a request that left"
SHRUNK = "state row with fewer blocks than before"
APPENDED = "blocks that came later"
BELOW = "blocks below the window"
TILES = "more columns than a program takes at a time"
LAST_COLUMN = "last column of a row"

_BATCH = (WIDTHS, PERMUTED, LEFT, APPENDED)

ACCESS = Invariant(
    id="TABLES-ACCESS",
    target=TARGET,
    statement=(
        "Kernels read the state rows of the batch's requests, at addresses that have "
        "not wrapped, and write whole rows of the tables that they are given."
    ),
    severity="crash",
    wired=(*_BATCH, FULL, WIDE_FIRST),
    contract=(*_BATCH, FULL, WIDE_FIRST),
)
STORES = Invariant(
    id="TABLES-STORES",
    target=TARGET,
    statement=(
        "Gathering stores to the step's tables only, and no two programs store "
        "different numbers to one element."
    ),
    severity="corruption",
    wired=_BATCH,
    contract=_BATCH,
)
RAISES = Invariant(
    id="TABLES-RAISES",
    target=TARGET,
    statement="Rows that fit their tables are filled and gathered without exception.",
    severity="crash",
    wired=(*_BATCH, LAST_COLUMN),
    contract=(*_BATCH, LAST_COLUMN),
)
ROWS = Invariant(
    id="TABLES-ROWS",
    target=TARGET,
    statement=(
        "Each row of the batch begins with its request's blocks in order, or with the "
        "null block for those wholly below the window where a release nulls them."
    ),
    severity="corruption",
    wired=(*_BATCH, LAST_COLUMN, SHRUNK),
    contract=(*_BATCH, LAST_COLUMN, SHRUNK, TILES),
)
PADDING = Invariant(
    id="TABLES-PADDING",
    target=TARGET,
    statement="Rows that pad the batch hold the null block in all their columns.",
    severity="corruption",
    wired=(PADDED, FULL, NARROW_FIRST),
    contract=(PADDED, FULL, NARROW_FIRST),
)
TAIL = Invariant(
    id="TABLES-TAIL",
    target=TARGET,
    statement=(
        "Beyond a row's blocks, and in rows beyond the batch, a table is as it was or "
        "null: no block of a request that had the state row before comes along."
    ),
    severity="corruption",
    wired=(LEFT, SHRUNK),
    contract=(LEFT, SHRUNK),
)
INVARIANTS = (ACCESS, STORES, RAISES, ROWS, PADDING, TAIL)

_ACCESSES = KernelLaws(exact=ACCESS, owned=ACCESS, stores=STORES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step.

    Attributes:
        tables: Requests that leave had the state rows of those that stay.
        states: State row of each request of the step, in the batch's order.
        padded: Rows that a captured graph has beyond the batch.
    """

    format_version: Literal[1]
    origin: Origin
    tables: Tables
    states: tuple[Few, ...]
    padded: Few

    def __post_init__(self) -> None:
        check_states(self.tables, self.states)
        if len(self.states) + self.padded > self.tables.rows:
            raise ValueError(
                f"{len(self.states)} requests and {self.padded} rows more, of "
                f"{self.tables.rows}"
            )


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What came of a step.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the tree.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        masks: Whether the release nulls blocks below the window.
        stale: What every element of the step's tables was before.
        gathered: The step's tables with all their rows, by group.
    """

    skipped: str = ""
    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    masks: bool = False
    stale: int = -1
    gathered: tuple[tuple[tuple[int, ...], ...], ...] = ()


def expected_row(
    group: Group, request: Request, row: tuple[int, ...], *, masks: bool
) -> tuple[int, ...]:
    """A request's blocks, the null block for those wholly below the window."""
    below = 0
    if masks and group.reach:
        below = max(request.computed - group.reach, 0) // group.block_size
    below = min(below, len(row))
    return (NULL_BLOCK,) * below + row[below:]


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one step; tables are judged where every access was right."""
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=observation.skipped
    )
    if early is not None:
        return early
    judged = {ACCESS.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if not observation.findings:
        judged |= {ROWS.id, PADDING.id, TAIL.id}
        first = {
            each.invariant: each for each in reversed([*_wrong(case, observation)])
        }
        violations = tuple(first.values())
    return Judgement(
        judged=frozenset(judged),
        violations=violations,
        labels=_labels(case, observation),
    )


def _wrong(case: Case, observation: Observation) -> Iterator[Violation]:
    """All parts of rows that are not what they must be."""
    tables, batch = case.tables, case.tables.staying
    idle = {observation.stale, NULL_BLOCK}
    for number, (group, rows, found) in enumerate(
        zip(tables.groups, rows_of(tables), observation.gathered, strict=True)
    ):
        for at, got in enumerate(found):
            where = f"row {at} of group {number} ({len(got)} columns)"
            tail = got
            if at < len(batch):
                request = tables.requests[batch[at]]
                right = expected_row(
                    group, request, rows[batch[at]], masks=observation.masks
                )
                own, tail = got[: len(right)], got[len(right) :]
                if own != right:
                    yield _violation(case, ROWS, f"{where}: {_differing(own, right)}")
            elif at < len(batch) + case.padded:
                if any(each != NULL_BLOCK for each in got):
                    null = (NULL_BLOCK,) * len(got)
                    yield _violation(
                        case, PADDING, f"{where} pads: {_differing(got, null)}"
                    )
                continue
            strange = [each for each in tail if each not in idle]
            if strange:
                yield _violation(
                    case, TAIL, f"{where}: blocks {strange[:4]} behind its own"
                )


def _differing(got: tuple[int, ...], right: tuple[int, ...]) -> str:
    wrong = [at for at, each in enumerate(right) if got[at : at + 1] != (each,)]
    at = wrong[0]
    return f"column {at} is {got[at]}, expected {right[at]} ({len(wrong)} are wrong)"


def _violation(case: Case, law: Invariant, message: str) -> Violation:
    return Violation(
        invariant=law.id,
        target=TARGET,
        origin=case.origin,
        site=KERNEL,
        message=message,
        evidence={"states": list(case.states), "padded": case.padded},
    )


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    tables = case.tables
    groups, requests = tables.groups, [tables.requests[at] for at in tables.staying]
    widths = [len(rows[0]) for rows in observation.gathered if rows]
    batch = len(case.states)
    blocks = [tables.count(each.tokens, group) for each in requests for group in groups]
    shown = {
        WIDTHS: len(set(widths)) > 1,
        WIDE_FIRST: bool(widths) and case.padded > 0 and widths[0] > min(widths),
        NARROW_FIRST: bool(widths) and case.padded > 0 and widths[0] < max(widths),
        PADDED: case.padded > 0,
        FULL: case.padded > 0 and batch + case.padded == tables.rows,
        PERMUTED: list(case.states) != sorted(case.states),
        LEFT: batch < len(tables.requests),
        SHRUNK: any(
            former.leaves and former.tokens > max(each.tokens for each in requests)
            for former in tables.requests
        ),
        APPENDED: any(each.first < each.tokens for each in requests),
        BELOW: any(
            each.computed - group.reach >= group.block_size
            for each in requests
            for group in groups
            if group.reach
        ),
        TILES: max(blocks) > TILE,
        LAST_COLUMN: any(each.tokens == tables.longest for each in requests),
    }
    return frozenset(label for label, seen in shown.items() if seen)
