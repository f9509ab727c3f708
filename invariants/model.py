"""The values that all rooms share: invariants, violations and judgements.

Everything here is a frozen value with a JSON form, so that it crosses process
borders, lands in files unchanged and can be compared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

# wired: widths, contents and specs were made by the release's own code.
# contract: anything that the function's documented contract allows.
Origin = Literal["wired", "contract"]
ORIGINS: tuple[Origin, ...] = ("wired", "contract")

Severity = Literal["crash", "corruption", "waste"]

FORMAT_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """One law of one target.

    Attributes:
        id: Stable name such as ``GDN-ALIGN-BOUNDS``; never reused for another law.
        target: The target's module name, such as ``page_size``.
        statement: The law in one sentence.
        severity: What breaking it does to a server.
        wired: Coverage labels that wired cases must have shown before a pass
            means anything; None when wired cases cannot judge this law.
        contract: The same for contract cases.
    """

    id: str
    target: str
    statement: str
    severity: Severity
    wired: tuple[str, ...] | None = None
    contract: tuple[str, ...] | None = None

    def labels_needed(self, origin: Origin) -> tuple[str, ...] | None:
        """Labels needed for a pass of this origin, None when it is not judged."""
        return self.wired if origin == "wired" else self.contract


@dataclass(frozen=True, kw_only=True)
class FaultKey:
    """What makes two violations the same fault.

    The origin is part of it: a fault shown on contract input only must not
    replace the evidence that the wired path reaches it.
    """

    target: str
    invariant: str
    origin: Origin
    site: str
    exception: str

    @property
    def id(self) -> str:
        """File-safe name: the target's slug and 8 hex digits of the key."""
        parts = (self.target, self.invariant, self.origin, self.site, self.exception)
        digest = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
        return f"{self.target.replace('_', '-')}-{digest[:8]}"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One invariant broken by one observation.

    Attributes:
        site: The symbol at fault without its module, which moves between releases:
            a function's qualified name, or ``kernel: expression``.
        message: The cause in one line, with the numbers a person can check.
        evidence: Further values by name.
        exception: Type name of the exception or death that showed it, else "".
    """

    invariant: str
    target: str
    origin: Origin
    site: str
    message: str
    evidence: Mapping[str, int | str | list[int]]
    exception: str = ""

    @property
    def key(self) -> FaultKey:
        """The fault that this violation is an instance of."""
        return FaultKey(
            target=self.target,
            invariant=self.invariant,
            origin=self.origin,
            site=self.site,
            exception=self.exception,
        )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the checks of one target say of one observation.

    Attributes:
        judged: Ids of the invariants that applied and were checked.
        violations: Those that did not hold; their invariants are in ``judged``.
        labels: Coverage labels that this case showed.
        skipped: The designed reason why nothing of the case ran, "" when it did.
    """

    judged: frozenset[str]
    violations: tuple[Violation, ...]
    labels: frozenset[str]
    skipped: str = ""

    def __post_init__(self) -> None:
        if self.skipped and self.judged:
            raise ValueError(
                f"skipped ({self.skipped}) and judged {sorted(self.judged)}: a case "
                "is one or the other"
            )
        stray = {violation.invariant for violation in self.violations} - self.judged
        if stray:
            raise ValueError(
                f"violations of invariants that were not judged: {sorted(stray)}; "
                "add them to judged"
            )


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception that escaped the code under test.

    Attributes:
        type: The exception's type name.
        message: Its text, at most 2,000 characters.
        site: Qualified name of the innermost function of the tree under test.
    """

    type: str
    message: str
    site: str


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of the isolated process that ran a case: an observation too.

    Attributes:
        cause: ``signal 11``, ``exit 3``, ``timed out``, ``memory limit``.
        detail: The last lines that the process wrote to stderr.
    """

    cause: str
    detail: str


def ending(exit_code: int) -> str:
    """How a process ended: ``exit 3``, or ``signal 11`` for an exit code of -11."""
    return f"signal {-exit_code}" if exit_code < 0 else f"exit {exit_code}"


class CaseError(ValueError):
    """A case or observation file that cannot be used; says why."""


def encode(value: object) -> str:
    """Canonical JSON of a frozen value: sorted keys, no spaces."""
    return msgspec.json.encode(value, order="sorted").decode()


def decode(text: str, kind: type[T]) -> T:
    """Read a value of ``kind`` strictly.

    Raises:
        CaseError: When the text is not JSON, a field is missing, unknown, of another
            type or outside its bounds.
    """
    try:
        raw = msgspec.json.decode(text)
        value = msgspec.json.decode(text, type=kind, strict=True)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise CaseError(f"not a valid {kind.__name__}: {error}") from error
    # msgspec ignores unknown fields of dataclasses and fills in defaults, so the
    # text must be exactly what the value says.
    if msgspec.json.decode(encode(value)) != raw:
        raise CaseError(
            f"not a valid {kind.__name__}: fields unknown to this format version, or "
            "left out; expected exactly "
            f"{sorted(msgspec.to_builtins(value))}"
        )
    return value


def digest(value: object) -> str:
    """16 hex digits that name a value's content."""
    return hashlib.sha256(encode(value).encode()).hexdigest()[:16]
