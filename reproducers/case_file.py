"""A saved fault as a value: the content of a case.json, read strictly.

Nothing in such a file is trusted: its id must follow from its fault key, its digest
from its case, and what no target writes is refused before anything is made of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from fuzz.rooms import TARGET_NAME
from invariants.model import (
    FORMAT_VERSION,
    CaseError,
    FaultKey,
    Origin,
    Severity,
    decode,
    digest,
    encode,
)

ID_PATTERN = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*-[0-9a-f]{8}")
DATE_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}")
DEPTH_MAX = 32
INTEGER_BITS_MAX = 64

T = TypeVar("T")


class FutureCase(CaseError):
    """A case that a newer kvfuzz wrote."""


def check_id(id_: str) -> None:
    """Refuse what cannot be an ID, such as a path.

    Raises:
        CaseError: Says what an ID looks like.
    """
    if not ID_PATTERN.fullmatch(id_):
        raise CaseError(
            f"{id_[:80]!r} is not a fault ID; one looks like page-size-0a1b2c3d"
        )


@dataclass(frozen=True, kw_only=True)
class FoundOn:
    """The exact circumstances in which a case was found.

    Attributes:
        spec: What was asked for: a release, ``installed`` or a path.
        digest: Hash of the tree's content, patches included.
        patches: Names of the patches applied, in order.
        seed: Seed of the run.
    """

    spec: str
    version: str
    digest: str
    patches: tuple[str, ...]
    platform: str
    torch: str
    triton: str
    python: str
    hypothesis: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The content of a case.json.

    Attributes:
        fix: What `verify_fix` said of the fixed implementation on this case:
            ``verified``, ``none``, or what it lacks, a colon and why.
        found: Date (UTC) on which the fault was first found, YYYY-MM-DD.
    """

    format_version: Literal[1]
    id: str
    target: str
    invariant: str
    origin: Origin
    site: str
    exception: str
    statement: str
    severity: Severity
    message: str
    evidence: dict[str, int | str | list[int]]
    case: dict[str, Any]
    case_digest: str
    found_on: FoundOn
    fix: str
    found: str

    def __post_init__(self) -> None:
        check_id(self.id)
        if not TARGET_NAME.fullmatch(self.target):
            raise ValueError(f"target {self.target!r} is not the name of a target")
        if self.id != self.key.id:
            raise ValueError(
                f"id is {self.id!r}, and its fault key gives {self.key.id!r}"
            )
        if not DATE_PATTERN.fullmatch(self.found):
            raise ValueError(f"found is {self.found!r}, and not a date YYYY-MM-DD")
        _check_bounds(self.case)
        actual = digest(self.case)
        if self.case_digest != actual:
            raise ValueError(
                f"case_digest is {self.case_digest!r}, and the case's is {actual!r}: "
                "the case was changed by hand"
            )

    @property
    def key(self) -> FaultKey:
        """The fault that the case shows."""
        return FaultKey(
            target=self.target,
            invariant=self.invariant,
            origin=self.origin,
            site=self.site,
            exception=self.exception,
        )

    @property
    def size(self) -> tuple[int, str]:
        """Order of cases of one fault: length of the canonical JSON, then its text."""
        text = encode(self.case)
        return len(text), text

    def typed_case(self, kind: type[T]) -> T:
        """The case as a value of its target's `Case` type.

        Raises:
            CaseError: When the target would refuse such a case.
        """
        return decode(encode(self.case), kind)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An entry of the store that cannot be used, and why.

    Attributes:
        future: Whether a newer kvfuzz wrote it, so that it is not damaged.
    """

    id: str
    reason: str
    future: bool


def _check_bounds(value: object) -> None:
    """Refuse what no target writes, before anything is made of it."""
    level: list[object] = [value]
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for each in level:
            if isinstance(each, int) and each.bit_length() > INTEGER_BITS_MAX:
                raise ValueError(
                    f"an integer of {each.bit_length()} bits; at most "
                    f"{INTEGER_BITS_MAX} are allowed"
                )
            if isinstance(each, Mapping):
                below.extend(each.values())
            elif isinstance(each, list | tuple):
                below.extend(each)
        if not below:
            return
        level = below
    raise ValueError(f"nested deeper than {DEPTH_MAX} levels")


def parsed(text: str) -> Saved:
    """Read the text of a case.json.

    Raises:
        FutureCase: When a newer kvfuzz wrote it.
        CaseError: When it cannot be used; says why.
    """
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        version = msgspec.json.decode(fields["format_version"])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CaseError(f"not a saved case: {error}") from error
    except KeyError as error:
        raise CaseError("not a saved case: it has no format_version") from error
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FutureCase(
            f"format_version is {version}, and this kvfuzz reads {FORMAT_VERSION}: use "
            "the newer kvfuzz that wrote it"
        )
    return decode(text, Saved)
