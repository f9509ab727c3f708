"""What findings of the memory checker mean to a target: laws by kind, and sites."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Origin, Raised, Violation


class Seen(Protocol):
    """What an observation of a target under the checker has."""

    @property
    def raised(self) -> Raised | None:
        """What escaped the tree."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all launches."""

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """Of all launches."""


@dataclass(frozen=True, kw_only=True)
class KernelLaws:
    """The laws of one target that an access can break.

    Attributes:
        exact: No wrapped number reaches an address or a mask.
        owned: Accesses stay in their views and in pages that are owned.
        stores: Stores go to what is no input, from one program each.
        scratch: Reads of scratch come after stores; None where there is no scratch.
    """

    exact: Invariant
    owned: Invariant
    stores: Invariant
    scratch: Invariant | None = None

    def broken_by(self, finding: Finding) -> Invariant:
        """The law that a finding breaks.

        Raises:
            ValueError: A read of scratch, at a target that declares none.
        """
        match finding.kind:
            case "wrapped":
                return self.exact
            case "outside the view" | "page not owned":
                return self.owned
            case "stored twice" | "read-only":
                return self.stores
            case "never written":
                if self.scratch is None:
                    raise ValueError(f"no law about scratch for {finding.message}")
                return self.scratch

    def violations(
        self, findings: Iterable[Finding], *, origin: Origin
    ) -> tuple[Violation, ...]:
        """One for each law, kernel and tensor: the first.

        Scratch that was never written is no news where another access was wrong: what
        depends on that is unknown and lands nowhere, so that later kernels miss it.
        """
        every = tuple(findings)
        causes = [each for each in every if each.kind != "never written"] or every

        def key(finding: Finding) -> tuple[str, str]:
            return self.broken_by(finding).id, _site(finding)

        ordered = sorted(causes, key=key)
        return tuple(
            self._violation(next(each), origin) for _, each in groupby(ordered, key)
        )

    def _violation(self, finding: Finding, origin: Origin) -> Violation:
        law = self.broken_by(finding)
        return Violation(
            invariant=law.id,
            target=law.target,
            origin=origin,
            site=_site(finding),
            message=finding.message,
            evidence={
                "value": finding.value,
                "wrapped": finding.wrapped,
                "limit": finding.limit,
                "program": list(finding.program),
                "lane": list(finding.lane),
            },
        )


def _site(finding: Finding) -> str:
    """Kernel and tensor, which stay when the source is edited."""
    return f"{finding.kernel}: {finding.tensor}"


def settled(
    seen: Seen,
    *,
    raises: Invariant,
    origin: Origin,
    skipped: str = "",
    labels: frozenset[str] = frozenset(),
) -> Judgement | None:
    """What a case comes to whose accesses need no judging, None for any other.

    Args:
        seen: What became of it.
        raises: The law that nothing escapes the tree.
        origin: Of the case.
        skipped: Why nothing ran, "" when it did.
        labels: Of the case, also where something was raised.
    """
    skipped = skipped or undecided_reason(seen.findings, seen.undecided)
    if skipped:
        return Judgement(
            judged=frozenset(), violations=(), labels=frozenset(), skipped=skipped
        )
    if seen.raised is None:
        return None
    violation = Violation(
        invariant=raises.id,
        target=raises.target,
        origin=origin,
        site=seen.raised.site,
        message=f"{seen.raised.type}: {seen.raised.message}",
        evidence={},
        exception=seen.raised.type,
    )
    return Judgement(
        judged=frozenset({raises.id}), violations=(violation,), labels=labels
    )


def undecided_reason(
    findings: tuple[Finding, ...], undecided: tuple[Undecided, ...]
) -> str:
    """Why a case passes nothing, "" when it is decided or something was found."""
    if findings or not undecided:
        return ""
    first = undecided[0]
    return f"undecided: {first.kernel}: {first.reason} ({first.place})"
