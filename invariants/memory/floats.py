"""Floating-point numbers of all programs of a launch at once, for value mode.

A value is a tensor with one row per running program and one axis per axis of the
kernel's tensor; axes along which it does not vary may have size 1. Each is held in the
kernel's own dtype. Nothing here imports torch until there are floats, so that address
mode, which shares frames with value mode, does without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False, slots=True)
class Floats:
    """A floating-point number of every program and lane.

    Attributes:
        shape: Of the tensor, () for a scalar.
        element: The dtype as TTIR names it: `f32`, `bf16`, `f8E4M3FN`, ….
        array: ``[rows or 1, *sizes or 1]``.
        unknown: Lanes that the kernel's inputs do not determine, bool of the same rank
            and broadcastable to ``[rows, *shape]``; None for none.
    """

    shape: tuple[int, ...]
    element: str
    array: torch.Tensor
    unknown: torch.Tensor | None = None


def taken(floats: Floats, rows: NDArray[np.intp]) -> Floats:
    """The value for some of the rows, or for rows more than once."""

    def of(array: torch.Tensor) -> torch.Tensor:
        return array if array.shape[0] == 1 else array[rows]

    return rearranged(floats, floats.shape, of)


def merged(rows: int, pieces: list[tuple[NDArray[np.intp], Floats]]) -> Floats:
    """One value from pieces that hold different rows each; rows of none are unknown."""
    import torch

    first = pieces[0][1]
    array = first.array.new_zeros((rows, *first.shape))
    unknown = torch.ones((rows, *first.shape), dtype=torch.bool)
    for index, each in pieces:
        array[index] = each.array
        unknown[index] = False if each.unknown is None else each.unknown
    return replace(first, array=array, unknown=unknown if bool(unknown.any()) else None)


def rearranged(
    floats: Floats,
    shape: tuple[int, ...],
    of: Callable[[torch.Tensor], torch.Tensor],
) -> Floats:
    """Apply one rearrangement of lanes to everything that is known of them."""
    unknown = floats.unknown
    return Floats(
        shape,
        floats.element,
        of(floats.array),
        None if unknown is None else of(unknown),
    )


def either(*masks: torch.Tensor | None) -> torch.Tensor | None:
    """Lanes that are in any of these masks."""
    result: torch.Tensor | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result | mask
    return result
