"""Judges an access lane by lane, and says what is wrong with the first of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from invariants.memory.findings import Finding, Kind
from invariants.memory.lanes import Bools, Ints, Lanes, Wrap
from invariants.memory.pointers import Place, Pointer, Verdict
from invariants.memory.regions import Region

_MASK = "its mask"
_ADDRESS = "its address"


def judge_lanes(place: Place, pointer: Pointer, mask: Lanes | None) -> Verdict:
    """Judge every lane. A mask's unknown lanes are to be active in it."""
    shape = (len(place.programs), *pointer.shape)
    offset = pointer.offset
    used = np.broadcast_to(offset.dense(), shape)
    active = np.broadcast_to(True if mask is None else mask.dense(), shape)
    masked = _broadcast(None if mask is None else mask.unknown, shape)
    vague = _broadcast(offset.unknown, shape)
    sure = active & ~masked & ~vague
    wrong, wrap = _wrapped(offset, mask, active, sure)
    findings: list[Finding] = []
    if bool(wrong.any()):
        findings.append(_wrap_finding(place, pointer, wrong, wrap))
    # What wrapped is told of once: where it lands is chance.
    usable = active & ~vague & ~wrong
    faults = list(_all_faults(place, pointer, sure & ~wrong, used))
    # In the order of programs, not of addresses, which differ from run to run.
    faults.sort(key=lambda fault: int(fault[1].argmax()))
    for kind, bad, region in faults:
        findings.append(_finding(place, pointer, kind, bad, region))
        usable = usable & ~bad
    for _, bad, _ in _all_faults(place, pointer, active & masked & ~vague, used):
        usable = usable & ~bad
    doubts = []
    # Where every lane is allowed, it does not matter which are active.
    uncertain = bool((active & masked).any()) or not place.certain
    if uncertain and not bool((usable == active).all()):
        doubts.append(_MASK)
    if bool((active & ~masked & vague).any()):
        doubts.append(_ADDRESS)
    return Verdict(tuple(findings) if place.certain else (), tuple(doubts), usable, 0)


def _broadcast(lanes: Bools | None, shape: tuple[int, ...]) -> Bools:
    return np.broadcast_to(np.False_ if lanes is None else lanes, shape)


def _wrapped(
    offset: Lanes, mask: Lanes | None, active: Bools, sure: Bools
) -> tuple[Bools, Wrap | None]:
    """Lanes whose address or mask exact arithmetic would have made otherwise."""
    wrong = sure & offset.differs()
    if mask is None or mask.exact is None:
        return wrong, offset.wrap
    # A lane that exact arithmetic would have let through is missing.
    missing = ~active & np.broadcast_to(mask.exact_or_dense(), sure.shape)
    return wrong | (sure & mask.differs()) | missing, offset.wrap or mask.wrap


def _all_faults(
    place: Place, pointer: Pointer, lanes: Bools, used: Ints
) -> Iterator[tuple[Kind, Bools, Region | None]]:
    for index, region in enumerate(pointer.regions):
        here = pointer.lanes_of(index, lanes)
        if bool(here.any()):
            for kind, bad in _faults(place, pointer, region, here, used):
                yield kind, bad, region


def _faults(
    place: Place, pointer: Pointer, region: Region | None, lanes: Bools, used: Ints
) -> Iterator[tuple[Kind, Bools]]:
    if region is None:
        yield "outside the view", lanes
        return
    if place.write and region.read_only:
        yield "read-only", lanes
    first = used * pointer.unit_bytes
    last = first + pointer.element_bytes - 1
    outside = lanes & ~region.contains(first, last)
    if bool(outside.any()):
        yield "outside the view", outside
    inside = lanes & ~outside
    if region.ownership is not None:
        pages = region.ownership.pages(first // region.element_bytes)
        alien = inside & ~region.ownership.allows(pages, write=place.write)
        if bool(alien.any()):
            yield "page not owned", alien
    written = region.storage.written
    if written is None:
        return
    start = region.base - region.storage.base
    if place.write:
        for byte in range(pointer.element_bytes):
            written[first[inside] + (start + byte)] = True
    else:
        fresh = inside & ~written[np.where(inside, first + start, 0)]
        if bool(fresh.any()):
            yield "never written", fresh


def _wrap_finding(
    place: Place, pointer: Pointer, wrong: Bools, wrap: Wrap | None
) -> Finding:
    bits = 32 if wrap is None else wrap.bits
    region = pointer.regions[0] if pointer.which is None else None
    return _told(
        place,
        pointer,
        "wrapped",
        wrong,
        region,
        limit=(1 << (bits - 1)) - 1,
        arithmetic="a value does not fit" if wrap is None else _told_wrap(place, wrap),
    )


def _told_wrap(place: Place, wrap: Wrap) -> str:
    """What wrapped, in source terms, with numbers to check."""
    _, line, expression = place.kernel.source(wrap.operation)
    return f"{expression}: {_threshold(wrap)}" if line else _threshold(wrap)


def _finding(
    place: Place, pointer: Pointer, kind: Kind, wrong: Bools, region: Region | None
) -> Finding:
    if region is None:
        text = "an address that belongs to nothing known"
        return _told(place, pointer, kind, wrong, None, limit=0, arithmetic=text)
    size = region.size_bytes // region.element_bytes
    element = _element(pointer, region, wrong, exact=False)
    limit = size
    if kind == "page not owned" and region.ownership is not None:
        limit = int(region.ownership.pages(np.asarray([element]))[0])
        state = region.ownership.states.get(limit, "nobody's or another's")
        text = f"element {element} is in page {limit}, which is {state}"
    elif kind == "outside the view" and 0 <= element < size:
        text = f"element {element} is between the rows of the view"
    elif kind == "outside the view":
        text = f"element {element} of {size}"
    elif kind == "never written":
        text = f"element {element} of {size} holds what no launch stored"
    else:
        text = f"element {element} of {size} is an input"
    return _told(place, pointer, kind, wrong, region, limit=limit, arithmetic=text)


def _element(
    pointer: Pointer, region: Region | None, wrong: Bools, *, exact: bool
) -> int:
    """Element of the view that the first wrong lane is at."""
    lanes = pointer.offset.exact_or_dense() if exact else pointer.offset.dense()
    first = tuple(np.argwhere(wrong)[0])
    offset = int(np.broadcast_to(lanes, wrong.shape)[first]) * pointer.unit_bytes
    return offset // (1 if region is None else region.element_bytes)


def _told(
    place: Place,
    pointer: Pointer,
    kind: Kind,
    wrong: Bools,
    region: Region | None,
    *,
    limit: int,
    arithmetic: str,
) -> Finding:
    row, *lane = (int(at) for at in np.argwhere(wrong)[0])
    file, line, expression = place.kernel.source(place.operation)
    return Finding(
        kind=kind,
        kernel=place.kernel.name,
        file=file,
        line=line,
        expression=expression,
        tensor="an address" if region is None else region.name,
        write=place.write,
        program=program_ids(int(place.programs[row]), place.grid),
        lane=tuple(lane),
        value=_element(pointer, region, wrong, exact=True),
        wrapped=_element(pointer, region, wrong, exact=False),
        limit=limit,
        lanes=int(wrong.sum()),
        arithmetic=arithmetic,
    )


def program_ids(program: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Ids along x, y, z of a program; x varies fastest."""
    x, y, _ = grid
    return program % x, program // x % y, program // (x * y)


def _threshold(wrap: Wrap) -> str:
    """The smallest numbers with which an operation leaves its width."""
    high = (1 << (wrap.bits - 1)) - 1
    low = -high - 1
    outside = (wrap.exact > high) | (wrap.exact < low)
    left = np.broadcast_to(wrap.left, outside.shape)[outside]
    right = np.broadcast_to(wrap.right, outside.shape)[outside]
    values = wrap.exact[outside]
    at = int(np.abs(values).argmin())
    a, b, value = int(left[at]), int(right[at]), int(values[at])
    bound = f"> {high}" if value > high else f"< {low}"
    signs = {"arith.muli": "x", "arith.addi": "+", "arith.subi": "-"}
    sign = signs.get(wrap.operation.name)
    if sign is None:
        return f"{value} {bound}"
    shown = f"{a} {sign} {b} = {value} {bound}"
    if sign != "x" or min(a, b, value) <= 0:
        return shown
    # With the factor that does not vary kept, the least other one that wraps.
    if np.ptp(wrap.right) == 0:
        a = high // b + 1
    elif np.ptp(wrap.left) == 0:
        b = high // a + 1
    return shown if a * b == value else f"{a} x {b} = {a * b} {bound}; here {value}"
