"""Judges one load, store or atomic of a kernel, for all programs and lanes at once.

An access whose offset is a sum of terms along different axes is inside its view when
its extremes are; only one that may not be is looked at lane by lane.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from invariants.memory.findings import Finding
from invariants.memory.lane_checks import judge_lanes
from invariants.memory.lanes import Array, Bools, Ints, Lanes, taken
from invariants.memory.pointers import Place, Pointer, Verdict

# Lanes that are looked at one by one together.
LANES_MAX = 1 << 18


def judge_access(
    place: Place, pointer: Pointer, mask: Lanes | None, *, wanted: bool
) -> Verdict:
    """Check an access against the views and owners of what it points to.

    Args:
        place: Where it stands.
        pointer: Of all lanes.
        mask: Of all lanes; those that are unknown are to be active in it.
        wanted: Whether its lanes will be used, so that all must be looked at.
    """
    lanes = int(np.prod(pointer.shape, dtype=np.int64))
    rows = len(place.programs)
    if _simple(place, pointer, mask) and _extremes_inside(place, pointer, mask):
        return Verdict((), (), None, rows * lanes)
    findings: list[Finding] = []
    doubts: list[str] = []
    usable: list[Bools] = []
    slice_rows = max(LANES_MAX // max(lanes, 1), 1)
    for first in range(0, rows, slice_rows):
        taken_rows = np.arange(first, min(first + slice_rows, rows))
        here = replace(place, programs=place.programs[taken_rows])
        part = pointer.taken(taken_rows)
        part_mask = None if mask is None else taken(mask, taken_rows)
        verdict = judge_lanes(here, part, part_mask)
        findings += verdict.findings
        doubts += verdict.doubts
        if wanted and verdict.usable is not None:
            usable.append(verdict.usable)
        if findings and not wanted:
            break
    return Verdict(
        findings=tuple(findings),
        doubts=tuple(doubts),
        usable=np.concatenate(usable) if usable else None,
        lanes=rows * lanes,
    )


def _simple(place: Place, pointer: Pointer, mask: Lanes | None) -> bool:
    """Whether extremes can say that an access is right."""
    region = pointer.regions[0]
    return (
        pointer.which is None
        and region is not None
        and pointer.offset.plain
        and (mask is None or mask.plain)
        and not (place.write and region.read_only)
        and region.storage.written is None
    )


def _extremes_inside(place: Place, pointer: Pointer, mask: Lanes | None) -> bool:
    """Whether the smallest and largest offsets say that all lanes are allowed."""
    region = pointer.regions[0]
    assert region is not None
    unit, size = pointer.unit_bytes, pointer.element_bytes
    offset = pointer.offset
    bounded = offset.low * unit >= 0 and offset.high * unit + size <= region.size_bytes
    if bounded and region.whole and region.ownership is None:
        return True
    extremes = _extremes(offset, mask)
    if extremes is None:
        return True
    starts, low, high = extremes
    first, last = (starts + low) * unit, (starts + high) * unit + size - 1
    if not bool(region.contains(first, last).all()):
        return False
    if region.ownership is None:
        return True
    pages = region.ownership.pages(first // region.element_bytes)
    ends = region.ownership.pages(last // region.element_bytes)
    same = bool((pages == ends).all())
    return same and bool(region.ownership.allows(pages, write=place.write).all())


def _extremes(
    offset: Lanes, mask: Lanes | None
) -> tuple[Ints, int | Ints, int | Ints] | None:
    """Starts of runs of lanes, with smallest and largest offset from each start.

    Axes that no part of offset or mask links to others are reduced one by one. The
    group of axes with the widest spread stays as starts, the others become the run.

    Returns:
        None when no lane is active.
    """
    parts = list(offset.parts)
    factors = [] if mask is None else list(mask.parts)
    groups = _axis_groups([*parts, *factors])
    alive: Array = np.ones((1,) * (1 + len(offset.shape)), dtype=np.bool_)
    rows: Array = np.zeros_like(alive, dtype=np.int64)
    reduced: list[tuple[Array, Array, Array, Array | None]] = []
    for group in groups:
        own = [part for part in parts if _varies(part) & group]
        masks = [factor for factor in factors if _varies(factor) & group]
        axes = tuple(sorted(group))
        total = _sum(own, alive.ndim)
        if masks:
            truth = masks[0]
            for each in masks[1:]:
                truth = truth & each
            alive = alive & truth.any(axis=axes, keepdims=True)
            top, bottom = np.iinfo(np.int64).max // 4, np.iinfo(np.int64).min // 4
            low = np.where(truth, total, top).min(axis=axes, keepdims=True)
            high = np.where(truth, total, bottom).max(axis=axes, keepdims=True)
            reduced.append((low, high, total, truth))
        else:
            low = total.min(axis=axes, keepdims=True)
            high = total.max(axis=axes, keepdims=True)
            reduced.append((low, high, total, None))
    for part in parts:
        if not _varies(part):
            rows = rows + part
    for factor in factors:
        if not _varies(factor):
            alive = alive & factor
    if not alive.any():
        return None
    return _combined(reduced, rows, alive)


def _combined(
    reduced: list[tuple[Array, Array, Array, Array | None]], rows: Array, alive: Array
) -> tuple[Ints, int | Ints, int | Ints]:
    def spread(low: Array, high: Array) -> int:
        live = np.broadcast_to(alive, np.broadcast_shapes(alive.shape, low.shape))
        width = np.where(live, high - low, 0)
        return int(width.max())

    order = sorted(reduced, key=lambda each: spread(each[0], each[1]))
    if not order:
        start = np.broadcast_to(rows, np.broadcast_shapes(rows.shape, alive.shape))
        live = np.broadcast_to(alive, start.shape)
        return start[live], 0, 0
    *inner, (_, _, total, truth) = order
    low, high = rows * 0, rows * 0
    for bottom, top, _, _ in inner:
        low, high = low + bottom, high + top
    live = alive if truth is None else alive & truth
    shape = np.broadcast_shapes(
        live.shape, total.shape, rows.shape, low.shape, high.shape
    )
    live = np.broadcast_to(live, shape)
    starts = np.broadcast_to(rows + total, shape)[live]
    return (
        starts,
        np.broadcast_to(low, shape)[live],
        np.broadcast_to(high, shape)[live],
    )


def _varies(array: Array) -> frozenset[int]:
    return frozenset(
        axis for axis, size in enumerate(array.shape) if axis and size != 1
    )


def _axis_groups(arrays: list[Array]) -> list[frozenset[int]]:
    """Sets of axes such that no array varies along axes of two of them."""
    groups: list[frozenset[int]] = []
    for array in arrays:
        axes = _varies(array)
        if not axes:
            continue
        linked = [group for group in groups if group & axes]
        groups = [group for group in groups if not group & axes]
        groups.append(axes.union(*linked))
    return groups


def _sum(parts: list[Array], ndim: int) -> Ints:
    if not parts:
        return np.zeros((1,) * ndim, dtype=np.int64)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def without_unknown(mask: Lanes | None) -> Lanes | None:
    """A mask whose unknown lanes count as active."""
    if mask is None or mask.unknown is None:
        return mask
    return replace(mask, parts=(mask.dense() | mask.unknown,), unknown=mask.unknown)
