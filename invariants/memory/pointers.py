"""Pointers of all programs and lanes, and accesses through them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from invariants.memory.findings import Finding
from invariants.memory.lanes import Bools, Ints, Lanes, taken
from invariants.memory.regions import Region
from invariants.memory.ttir import Operation

if TYPE_CHECKING:
    from invariants.memory.kernel import Kernel


@dataclass(frozen=True, eq=False)
class Pointer:
    """A pointer of every program and lane.

    Attributes:
        regions: What the lanes point into; None for an address of unknown memory.
        which: Index into `regions` per lane; None when all lanes have the first.
        offset: From the region's base, in units.
        unit_bytes: Bytes of a unit.
        element_bits: Width of what is pointed to.
        integer: Whether that is an integer.
    """

    regions: tuple[Region | None, ...]
    which: Ints | None
    offset: Lanes
    unit_bytes: int
    element_bits: int
    integer: bool

    @property
    def element_bytes(self) -> int:
        """Bytes of what is pointed to; a predicate takes one."""
        return max(self.element_bits, 8) // 8

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor of pointers."""
        return self.offset.shape

    def taken(self, rows: NDArray[np.intp]) -> Pointer:
        """The pointer for some of the rows, or for rows more than once."""
        which = self.which
        if which is not None and which.shape[0] != 1:
            which = which[rows]
        return replace(self, offset=taken(self.offset, rows), which=which)

    def lanes_of(self, index: int, lanes: Bools) -> Bools:
        """Those of some lanes that point into one of the regions."""
        if self.which is None:
            return lanes
        here: Bools = lanes & (np.broadcast_to(self.which, lanes.shape) == index)
        return here


@dataclass(frozen=True, eq=False)
class Place:
    """The access being judged.

    Attributes:
        programs: ``[rows]`` linear ids of the programs that the rows belong to.
        certain: Whether the access is known to run; else nothing wrong is certain.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    programs: Ints
    operation: Operation
    certain: bool
    write: bool


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an access came to.

    Attributes:
        usable: Lanes that are active and may touch memory, None for all active ones.
        doubts: What is not known and decides: its address, its mask.
        lanes: Active lanes, at most.
    """

    findings: tuple[Finding, ...]
    doubts: tuple[str, ...]
    usable: Bools | None
    lanes: int
