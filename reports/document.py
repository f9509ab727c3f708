"""The report: one frozen JSON document that says what a run judged and found.

Only values live here; `reports.report` makes them from events and every rendering reads
them. docs/report-schema.md explains each field for readers of ``report.json``.
"""

from typing import Annotated, Final, Literal

import msgspec

from reports.events import Expected, LedgerRecord, Origin, Outcome, TreeRecord

FORMAT: Final = "kvfuzz-report"
FORMAT_VERSION: Final = 2

Count = Annotated[int, msgspec.Meta(ge=0)]

Verdict = Literal[
    "violated", "not run", "absent", "incomplete", "vacuous", "known", "held"
]
Standing = Literal["new", "regressed", "known"]
ReplayOutcome = Literal[Outcome, "NOT_RUN"]
ControlOutcome = Literal["found", "not found", "not run", "absent"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the document's parts: frozen, and strict about what it reads."""


class Row(_Part, frozen=True, kw_only=True):
    """One invariant under cases of one origin.

    Attributes:
        cases: Cases in which the invariant applied and was checked.
        labels: Each coverage label that a pass needs, with the cases that showed it.
        labels_missing: Those seen less often than the report's ``labels_min``.
        findings: Ids of this row's findings.
        verdict: See docs/report-schema.md; the first that applies, in that order.
    """

    invariant: str
    target: str
    origin: Origin
    statement: str
    severity: str
    cases: Count
    labels: dict[str, Count]
    labels_missing: tuple[str, ...]
    findings: tuple[str, ...]
    verdict: Verdict


class PropertyTotals(_Part, frozen=True, kw_only=True):
    """What the shards of one property (a target under one origin) did together.

    Attributes:
        cases: Cases run, those of unfinished shards included as far as they told.
        labels: Every coverage label seen in finished shards, with its cases.
        shards: Shards that were planned.
        unfinished: Names of the planned shards that never finished.
    """

    target: str
    origin: Origin
    cases: Count
    labels: dict[str, Count]
    shards: Count
    unfinished: tuple[str, ...]


class Finding(_Part, frozen=True, kw_only=True):
    """A fault that this run saw, shown by its smallest case.

    Attributes:
        cause: One line.
        case: Canonical JSON of the smallest case, the saved one included when it was
            replayed; "" when only the outcome of that is known.
        shrunk: Whether that case was shrunk to the end.
        fix: "verified", "none", or why the fixed implementation does not pass; ""
            when it was not asked.
        saved: Path of the reproducer, "" when it was not saved.
        before_characters: Length of the case saved there before the run, 0 for none.
        command: What replays it; for one that was not saved, what runs its cases again.
        standing: ``new``; ``regressed`` when the ledger calls it fixed here; ``known``
            when the ledger expects it.
        link: Of the ledger's entry, "" without one.
        sources: Shards that saw it, and ``replay``.
    """

    id: str
    invariant: str
    target: str
    origin: Origin
    site: str
    exception: str
    cause: str
    evidence: dict[str, int | str | list[int]]
    case: str
    shrunk: bool
    fix: str
    saved: str
    before_characters: Count
    command: str
    standing: Standing
    link: str
    sources: tuple[str, ...]


class Replay(_Part, frozen=True, kw_only=True):
    """A saved fault on this tree.

    Attributes:
        invariant: "" when it was planned and never ran, as are target and message.
        outcome: ``NOT_RUN`` when it was planned and nothing was heard of it.
        expected: What the ledger says of this tree, "" without an entry.
    """

    id: str
    target: str
    invariant: str
    origin: Origin | Literal[""]
    outcome: ReplayOutcome
    message: str
    expected: Literal[Expected, ""]


class Control(_Part, frozen=True, kw_only=True):
    """A planted fault, looked for within ``cases`` cases.

    Attributes:
        outcome: ``absent`` when the target that it is named after is absent.
    """

    name: str
    outcome: ControlOutcome
    cases: Count
    message: str


class Skip(_Part, frozen=True, kw_only=True):
    """Something that was designed to run and did not, ``count`` times."""

    what: str
    reason: str
    count: Count


class Absence(_Part, frozen=True, kw_only=True):
    """A target whose code path this tree does not have, in the target's words."""

    target: str
    reason: str


class Trouble(_Part, frozen=True, kw_only=True):
    """Something that kept the run from telling."""

    where: str
    message: str


class Machine(_Part, frozen=True, kw_only=True):
    """One machine's share of the run, and what it ran with.

    Attributes:
        target_folders: Folders of users' own targets (``--targets``), absolute.
    """

    run: str
    shard_id: Count
    command: str
    target_folders: tuple[str, ...]
    python: str
    torch: str
    triton: str
    hypothesis: str
    platform: str


class Startup(_Part, frozen=True, kw_only=True):
    """What one worker's start took.

    Attributes:
        startup_s: Seconds until it had the tree activated and imported.
        isolation_s: Seconds, later on, for starting isolating processes, in which
            cases run that may end them; 0 where it needed none or was killed.
    """

    worker: str
    startup_s: float
    isolation_s: float = 0.0


class Times(_Part, frozen=True, kw_only=True):
    """All that may differ between two runs of the same cases.

    Attributes:
        started_unix_s: Of the first machine; None when no start was recorded.
        seconds: Of the longest machine; None while one has not finished.
        shard_s: Seconds by shard.
    """

    started_unix_s: float | None
    seconds: float | None
    startups: tuple[Startup, ...]
    shard_s: dict[str, float]


class Report(_Part, frozen=True, kw_only=True):
    """The document. Apart from ``times`` it depends on the cases alone.

    Attributes:
        profile: None, like seed and tree, when no start of a run was recorded.
        strict: Whether the run was asked to break on contract findings too.
        labels_min: How often a needed label must be seen.
        finished: Whether every machine's run ended by itself.
        num_shards: Machines that share the run.
        machines_missing: Values of ``--shard-id`` that this document lacks.
    """

    format: Literal["kvfuzz-report"]
    format_version: Literal[2]
    profile: str | None
    seed: int | None
    strict: bool
    labels_min: Count
    tree: TreeRecord | None
    finished: bool
    num_shards: Count
    machines: tuple[Machine, ...]
    machines_missing: tuple[int, ...]
    rows: tuple[Row, ...]
    properties: tuple[PropertyTotals, ...]
    findings: tuple[Finding, ...]
    replays: tuple[Replay, ...]
    controls: tuple[Control, ...]
    ledger: tuple[LedgerRecord, ...]
    skips: tuple[Skip, ...]
    absences: tuple[Absence, ...]
    problems: tuple[Trouble, ...]
    times: Times

    @property
    def cases(self) -> int:
        """Cases run by all properties together."""
        return sum(each.cases for each in self.properties)


def property_name(target: str, origin: str) -> str:
    """``target/origin``, as shards and ``RunStarted.properties`` spell it."""
    return f"{target}/{origin}"
