"""The ledger: findings known to be open, and the releases that show them.

`known.toml` is written by people, so every mistake in it gets an error that names the
entry. Reading it imports nothing of the subject.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.rooms import TARGET_NAME
from invariants.model import Origin
from reports.events import Expected
from reproducers.case_file import Refused, Saved, check_id

KNOWN = Path(__file__).parent / "known.toml"

LINK_PATTERN = re.compile(r"https://[\w.-]+(?:/[\w.~-]+)+")
VERSION_PATTERN = re.compile(r"\d+(?:\.\d+)+")
RANGE_MARK = ".."


class LedgerError(Exception):
    """A ledger that cannot be used; names the entry and what to do."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding known to be open.

    Attributes:
        id: The fault's ID; its case is in the store.
        link: Public issue or pull request, "" where nobody has reported it.
        summary: The fault in one line.
        affected: Releases that show it: ``0.20.1``, or ``0.20.1..0.33.0`` with both
            ends included.
        fixed_in: First release without it, "" while it is open.
        evidence: How it is known, for someone who doubts it.
    """

    id: str
    link: str
    summary: str
    target: str
    invariant: str
    origin: Origin
    affected: tuple[str, ...]
    fixed_in: str
    evidence: str

    def __post_init__(self) -> None:
        check_id(self.id)
        if not TARGET_NAME.fullmatch(self.target):
            raise ValueError(f"target {self.target!r} is not the name of a target")
        if self.link and not LINK_PATTERN.fullmatch(self.link):
            raise ValueError(
                f"link {self.link!r} is not the https:// address of a public issue or "
                'pull request; "" where there is none'
            )
        for name, text in (("summary", self.summary), ("evidence", self.evidence)):
            if not text.strip():
                raise ValueError(f"{name} is empty")
        if not self.affected:
            raise ValueError(
                "affected names no release; what shows nowhere is no entry"
            )
        ranges = [_range(each) for each in self.affected]
        if self.fixed_in:
            fixed = _release(self.fixed_in)
            late = [
                text
                for text, (_, last) in zip(self.affected, ranges, strict=True)
                if last >= fixed
            ]
            if late:
                raise ValueError(
                    f"affected {late[0]!r} is not before fixed_in {self.fixed_in!r}"
                )

    def expected(self, version: str) -> Expected:
        """Whether a release is recorded as affected.

        Args:
            version: As vLLM gives it; what is no plain release (a development version,
                a commit) is unknown.
        """
        plain = version.partition("+")[0]
        if not VERSION_PATTERN.fullmatch(plain):
            return "unknown"
        release = _release(plain)
        if any(first <= release <= last for first, last in map(_range, self.affected)):
            return "affected"
        if self.fixed_in and release >= _release(self.fixed_in):
            return "fixed"
        return "unknown"


def _release(text: str) -> tuple[int, ...]:
    if not VERSION_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is not a release such as 0.33.0")
    parts = [int(part) for part in text.split(".")]
    while parts[-1] == 0 and len(parts) > 1:
        parts.pop()
    return tuple(parts)


def _range(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first, mark, last = text.partition(RANGE_MARK)
    ends = _release(first), _release(last if mark else first)
    if ends[0] > ends[1]:
        raise ValueError(f"affected {text!r} ends before it begins")
    return ends


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of known.toml."""

    finding: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All entries, in the file's order."""

    entries: tuple[Entry, ...]

    @classmethod
    def load(cls, path: Path = KNOWN) -> "Ledger":
        """Read a ledger.

        Raises:
            LedgerError: When it cannot be read, an entry is not valid, or two entries
                have the same ID.
        """
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
            findings = msgspec.convert(raw, _File).finding
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise LedgerError(f"the ledger {path} cannot be read: {error}") from error
        except msgspec.ValidationError as error:
            raise LedgerError(
                f"the ledger {path} must hold [[finding]] tables only: {error}"
            ) from error
        entries: dict[str, Entry] = {}
        for number, finding in enumerate(findings, start=1):
            name = f"{path}: finding {number} ({finding.get('id', 'no id')})"
            try:
                entry = msgspec.convert(finding, Entry)
            except msgspec.ValidationError as error:
                raise LedgerError(f"{name}: {error}") from error
            if entry.id in entries:
                raise LedgerError(f"{name}: a second entry of this ID; merge the two")
            entries[entry.id] = entry
        return cls(entries=tuple(entries.values()))

    def get(self, id_: str) -> Entry | None:
        """The entry of a fault, None when it is not known to be open."""
        return next((entry for entry in self.entries if entry.id == id_), None)

    def expected(self, id_: str, version: str) -> Expected:
        """Whether a release is recorded as affected by a fault."""
        entry = self.get(id_)
        return "unknown" if entry is None else entry.expected(version)


def disagreements(ledger: Ledger, store: Iterable[Saved | Refused]) -> list[str]:
    """What is wrong between a ledger and the saved cases, a line each."""
    saved = {each.id: each for each in store}
    lines = []
    for entry in ledger.entries:
        case = saved.get(entry.id)
        if case is None:
            lines.append(f"{entry.id} is in the ledger and has no saved case")
        elif isinstance(case, Refused):
            lines.append(f"{entry.id} is in the ledger and refused: {case.reason}")
        else:
            said = (entry.target, entry.invariant, entry.origin)
            actual = (case.target, case.invariant, case.origin)
            if said != actual:
                lines.append(
                    f"{entry.id}: the ledger says {' '.join(said)}, its case says "
                    f"{' '.join(actual)}"
                )
    return lines
