"""What the checker says of a launch: plain values, to travel in observations."""

from dataclasses import dataclass
from typing import Literal

# Outside the view: before or after it, or between the rows of one that has gaps.
Kind = Literal[
    "outside the view",
    "page not owned",
    "wrapped",
    "never written",
    "stored twice",
    "read-only",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One access that is wrong, the first of its kind at its place.

    Attributes:
        kernel: The kernel's qualified name, without its module.
        file: Of the access in the tree's source.
        line: The same, from 1.
        expression: What stands there.
        tensor: The argument that is accessed, or an address.
        program: Ids along x, y, z of the first program.
        lane: Index of the first lane, () for a scalar access.
        value: The element offset that is right in 64 bits, from the view's start.
        wrapped: The offset that is used.
        limit: Elements from start to end of the view, or the first page not owned.
        lanes: How many lanes are wrong among those looked at (programs in order, until
            something was found).
        arithmetic: The smallest sum or product that shows it.
    """

    kind: Kind
    kernel: str
    file: str
    line: int
    expression: str
    tensor: str
    write: bool
    program: tuple[int, int, int]
    lane: tuple[int, ...]
    value: int
    wrapped: int
    limit: int
    lanes: int
    arithmetic: str

    @property
    def site(self) -> str:
        """`kernel: expression`, which stays when lines move."""
        return f"{self.kernel}: {self.expression}"

    @property
    def message(self) -> str:
        """The cause in one line."""
        what = "stores to" if self.write else "reads"
        place = f"{self.file}:{self.line}"
        return (
            f"{self.kernel} program {self.program} lane {self.lane} {what} "
            f"{self.tensor}: {self.kind}: {self.arithmetic} "
            f"({place}: {self.expression})"
        )


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """A launch, or part of one, on which nothing can be said.

    Attributes:
        reason: What is not known, such as an operation's name.
        place: ``file:line`` of it, "" when there is none.
    """

    kernel: str
    reason: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One checked launch.

    Attributes:
        grid: Programs along x, y, z.
        accesses: Loads, stores and atomics judged, once per loop trip.
        lanes: Lanes of all of them.
    """

    kernel: str
    grid: tuple[int, int, int]
    accesses: int
    lanes: int
    findings: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]
