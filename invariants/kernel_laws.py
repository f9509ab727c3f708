"""What findings of the memory checker mean to a target: laws by kind, and sites."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Origin, Raised, Violation


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
        """One for each law, kernel and tensor: the first."""

        def key(finding: Finding) -> tuple[str, str]:
            return self.broken_by(finding).id, _site(finding)

        ordered = sorted(findings, key=key)
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


def raised_violation(law: Invariant, raised: Raised, origin: Origin) -> Violation:
    """What escaped the tree where nothing may."""
    return Violation(
        invariant=law.id,
        target=law.target,
        origin=origin,
        site=raised.site,
        message=f"{raised.type}: {raised.message}",
        evidence={},
        exception=raised.type,
    )


def undecided_reason(
    findings: tuple[Finding, ...], undecided: tuple[Undecided, ...]
) -> str:
    """Why a case passes nothing, "" when it is decided or something was found."""
    if findings or not undecided:
        return ""
    first = undecided[0]
    return f"undecided: {first.kernel}: {first.reason} ({first.place})"
