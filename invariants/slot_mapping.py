"""Each token of a step is mapped to its slot, and every other place to no slot.

The reference deals tokens out to ranks and fills blocks with them, one token at a time;
the batch is a plain list from which requests leave and whose rows change places. Every
access of the kernels is judged by `invariants.memory` as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Origin, Raised, Violation
from invariants.table_case import (
    ID_LIMIT,
    TILE,
    Few,
    Runner,
    Tables,
    check_states,
    condensed,
    rows_of,
    slot,
    split,
)

TARGET = "slot_mapping"
NO_SLOT = -1
SITES: dict[Runner, str] = {
    "v1": "BlockTable.compute_slot_mapping",
    "v2": "BlockTables.compute_slot_mappings",
}

PAST_SLOTS = "slot beyond 2^31"
TILES = "more tokens than a program takes at a time"
TILE_EDGE = "as many tokens as a program takes at a time"
LONGEST = "token at the model's longest length"
SPARE = "rest of the buffer"
LEFT = "row of a request that left"
EXCHANGED = "exchanged rows"
GROUPS = "groups of different block sizes"
RANKS = "shared out among ranks"
TURNS = "several tokens in turn to a rank"
SPLIT = "kernel blocks smaller than the manager's"
DUMMIES = "rows of no request"
STATELESS = "group without slots"
WHOLE = "group that every rank holds"

_BATCH = ("v1", "v2", TILES, GROUPS, RANKS)

ACCESS = Invariant(
    id="SLOT-MAP-ACCESS",
    target=TARGET,
    statement=(
        "Kernels read the rows of the step's requests and the step's own tokens, at "
        "addresses that have not wrapped."
    ),
    severity="crash",
    wired=(*_BATCH, LONGEST, LEFT),
    contract=(*_BATCH, LONGEST, LEFT),
)
STORES = Invariant(
    id="SLOT-MAP-STORES",
    target=TARGET,
    statement="A launch stores to the slot mapping only, one number to each place.",
    severity="corruption",
    wired=_BATCH,
    contract=_BATCH,
)
RAISES = Invariant(
    id="SLOT-MAP-RAISES",
    target=TARGET,
    statement="Rows that fit their tables are filled and mapped without an exception.",
    severity="crash",
    wired=_BATCH,
    contract=_BATCH,
)
VALUES = Invariant(
    id="SLOT-MAP-VALUES",
    target=TARGET,
    statement=(
        "Each token has the slot that its position has in its request's blocks, in 64 "
        "bits, and -1 where another rank keeps it."
    ),
    severity="corruption",
    wired=(*_BATCH, TILE_EDGE, LEFT, EXCHANGED, TURNS),
    contract=(*_BATCH, TILE_EDGE, LEFT, EXCHANGED, TURNS, PAST_SLOTS),
)
PADDING = Invariant(
    id="SLOT-MAP-PADDING",
    target=TARGET,
    statement="Places behind the step's last token hold -1, to the buffer's end.",
    severity="corruption",
    wired=(SPARE, "v1", "v2"),
    contract=(SPARE, "v1", "v2"),
)
INVARIANTS = (ACCESS, STORES, RAISES, VALUES, PADDING)

_ACCESSES = KernelLaws(exact=ACCESS, owned=ACCESS, stores=STORES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step.

    Attributes:
        tables: V1 gives the staying requests rows as its batch does; in V2 each keeps
            its state row.
        prefill_ranks: How many of the ranks are of prefill context parallelism; V1 has
            it in some releases.
        swaps: Rows of the batch that change places, in order (V1).
        states: State row of each request of the step (V2); those that leave had the
            same ones before.
        dummies: Tokens of each further row of the batch, which no request has (V2).
        padded: Places that the step's graph has beyond its tokens.
        spare: Places of the buffer beyond those.
    """

    format_version: Literal[1]
    origin: Origin
    runner: Runner
    tables: Tables
    prefill_ranks: Annotated[int, msgspec.Meta(ge=1, le=8)]
    swaps: tuple[tuple[Few, Few], ...]
    states: tuple[Few, ...]
    dummies: tuple[Annotated[int, msgspec.Meta(ge=0, le=64)], ...]
    padded: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    spare: Annotated[int, msgspec.Meta(ge=0, le=4096)]

    def __post_init__(self) -> None:
        tables, batch = self.tables, len(self.tables.staying)
        v1 = self.runner == "v1"
        if v1 and (self.states or self.dummies):
            raise ValueError("V1 has neither state rows nor rows of no request")
        if not v1 and (self.swaps or self.prefill_ranks > 1):
            raise ValueError("V2 moves no rows, and shares out nothing more")
        if not v1 and any(split(each) > 1 for each in tables.groups):
            raise ValueError("V2's tables hold the manager's blocks")
        if not v1:
            check_states(tables, self.states)
        if tables.ranks % self.prefill_ranks:
            raise ValueError(f"{self.prefill_ranks} of {tables.ranks} ranks")
        if any(max(pair) >= batch for pair in self.swaps):
            raise ValueError(f"{list(self.swaps)} name rows beyond {batch}")
        if len(self.dummies) + batch > tables.rows:
            raise ValueError(f"{len(self.dummies)} rows more than tables have")

    @property
    def batch(self) -> tuple[int, ...]:
        """Requests in the order of the batch's rows, by their place in `requests`."""
        if self.runner == "v2":
            return self.tables.staying
        order = list(condensed(self.tables))
        for one, other in self.swaps:
            order[one], order[other] = order[other], order[one]
        return tuple(order)

    @property
    def queries(self) -> tuple[int, ...]:
        """Tokens of each row of the batch."""
        requests = self.tables.requests
        return (*(requests[at].query for at in self.batch), *self.dummies)

    @property
    def positions(self) -> tuple[int, ...]:
        """Position of each token in its request; 0 for those of no request."""
        requests = self.tables.requests
        own = tuple(
            position
            for at in self.batch
            for position in range(requests[at].computed, requests[at].tokens)
        )
        return own + (0,) * sum(self.dummies)

    @property
    def capacity(self) -> int:
        """Places of the buffer."""
        return max(1, sum(self.queries) + self.padded + self.spare)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What came of a step.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the tree.
        findings: Of the memory checker.
        undecided: What could not be judged; the case then passes nothing.
        slots: The whole buffer of each group; None for a group that has no mapping.
    """

    skipped: str = ""
    raised: Raised | None = None
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    slots: tuple[tuple[int, ...] | None, ...] = ()


def expected_slots(case: Case) -> tuple[tuple[int, ...], ...]:
    """Slot of each of the step's tokens, by group."""
    tables = case.tables
    owners = [at for at in case.batch for _ in range(tables.requests[at].query)]
    none = (NO_SLOT,) * sum(case.dummies)
    found = []
    for group, rows in zip(tables.groups, rows_of(tables), strict=True):
        own = tuple(
            slot(tables, group, rows[at], position) if group.slots else NO_SLOT
            for at, position in zip(owners, case.positions, strict=False)
        )
        found.append(own + none)
    return tuple(found)


def judge(case: Case, observation: Observation) -> Judgement:
    """Check one step; slots are judged where every access was right."""
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=observation.skipped
    )
    if early is not None:
        return early
    judged = {ACCESS.id, STORES.id, RAISES.id}
    violations = _ACCESSES.violations(observation.findings, origin=case.origin)
    if not observation.findings:
        judged |= {VALUES.id, PADDING.id}
        violations = tuple(_wrong_slots(case, observation))
    return Judgement(
        judged=frozenset(judged), violations=violations, labels=_labels(case)
    )


def _wrong_slots(case: Case, observation: Observation) -> Iterator[Violation]:
    """The first wrong place of each kind."""
    seen: set[str] = set()
    tokens = sum(case.queries)
    for at, (found, expected) in enumerate(
        zip(observation.slots, expected_slots(case), strict=True)
    ):
        if found is None:
            continue
        padding = (NO_SLOT,) * (len(found) - tokens)
        for law, got, right in (
            (VALUES, found[:tokens], expected),
            (PADDING, found[tokens:], padding),
        ):
            if got == right or law.id in seen:
                continue
            seen.add(law.id)
            wrong = [n for n, each in enumerate(right) if got[n] != each]
            first = wrong[0]
            place = first if law is VALUES else tokens + first
            yield Violation(
                invariant=law.id,
                target=TARGET,
                origin=case.origin,
                site=f"{SITES[case.runner]}{_part(case, got[first], right[first])}",
                message=f"group {at}, place {place} of {tokens} tokens: slot "
                f"{got[first]}, expected {right[first]} ({len(wrong)} are wrong)",
                evidence={"group": at, "place": place, "tokens": tokens},
            )


def _part(case: Case, got: int, right: int) -> str:
    """What of the mapping is wrong, so that a known fault hides no other one."""
    if got != right and (got - right) % 2**32 == 0:
        return ": 32 bits"
    smallest = min(each.kernel_block_size for each in case.tables.groups)
    long_turns = case.tables.ranks > 1 and case.tables.interleave > smallest
    return ": long turns" if long_turns else ""


def _labels(case: Case) -> frozenset[str]:
    tables = case.tables
    queries = case.queries
    sizes = {each.block_size for each in tables.groups}
    shared = tables.ranks > 1
    shown = {
        case.runner: True,
        PAST_SLOTS: any(
            slot >= ID_LIMIT for slots in expected_slots(case) for slot in slots
        ),
        TILES: max(queries) > TILE,
        TILE_EDGE: TILE in queries,
        LONGEST: any(
            tables.requests[at].query and tables.requests[at].tokens == tables.longest
            for at in case.batch
        ),
        SPARE: case.padded + case.spare > 0,
        LEFT: len(case.batch) < len(tables.requests),
        EXCHANGED: any(one != other for one, other in case.swaps),
        GROUPS: len(sizes) > 1,
        RANKS: shared,
        TURNS: shared and tables.interleave > 1,
        SPLIT: any(split(each) > 1 for each in tables.groups),
        DUMMIES: bool(case.dummies),
        STATELESS: not all(each.slots for each in tables.groups),
        WHOLE: shared and not all(each.sharded for each in tables.groups),
    }
    return frozenset(label for label, seen in shown.items() if seen)
