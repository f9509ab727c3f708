"""Which bytes belong to a view, and which pages to a request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from invariants.memory.regions import Memory, Ownership, Region


def region_of(tensor: torch.Tensor) -> Region:
    return Memory().region(tensor, name="view")


def inside(region: Region, elements: range) -> list[int]:
    """Elements, counted from the view's start, that an access may touch."""
    size = region.element_bytes
    first = np.asarray(elements, dtype=np.int64) * size
    held = region.contains(first, first + size - 1)
    return [at for at, each in zip(elements, held, strict=True) if each]


def elements_of(tensor: torch.Tensor) -> set[int]:
    """Every element that an index of the tensor names, by brute force."""
    found = {0} if tensor.numel() else set()
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        found = {at + stride * i for at in found for i in range(size)}
    return found


@st.composite
def nested_views(draw: st.DrawFn) -> torch.Tensor:
    """A part of a contiguous tensor, its axes in any order, some of them repeated."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    whole = torch.zeros(shape, dtype=torch.int16)
    cuts = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        cuts.append(slice(start, draw(st.integers(start + 1, size))))
    view = whole[tuple(cuts)].permute(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        view = view.unsqueeze(0).expand(3, *view.shape)
    return view


@settings(max_examples=300, deadline=None, database=None)
@given(nested_views())
def test_a_part_of_a_tensor_is_its_elements_and_no_others(view: torch.Tensor) -> None:
    region = region_of(view)
    assert set(inside(region, range(-300, 300))) == elements_of(view)


@settings(max_examples=200, deadline=None, database=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_rows_of_a_sliding_view_overlap(rows: int, size: int, step: int) -> None:
    assume(step <= size)
    view = torch.zeros(200).as_strided((rows, size), (step, 1))
    assert inside(region_of(view), range(-9, 200)) == sorted(elements_of(view))


def test_an_access_is_in_one_row() -> None:
    """Four bytes, of which two are in the gap, though both ends are in the view."""
    view = torch.zeros((4, 8), dtype=torch.int16)[:, :7]
    region = region_of(view)
    at = np.array([6 * 2, 5 * 2, 7 * 2])
    assert region.contains(at, at + 3).tolist() == [False, True, False]


@pytest.mark.parametrize("first", [-4, -1, 32, 100, -(2**62), 2**62])
def test_far_from_a_view(first: int) -> None:
    region = region_of(torch.zeros(8))
    at = np.array([first])
    assert not region.contains(at, at + 3).any()


def test_an_empty_view_holds_nothing() -> None:
    region = region_of(torch.zeros((4, 0, 3)))
    assert region.size_bytes == 0
    assert inside(region, range(-3, 3)) == []


def test_a_view_that_may_reach_all_of_its_storage() -> None:
    memory, whole = Memory(), torch.zeros((4, 8))
    memory.whole_storage(whole[1])
    region = memory.region(whole[1], name="view")
    assert inside(region, range(-9, 30)) == list(range(24))


def test_pages_by_state() -> None:
    pool = torch.zeros((6, 2, 8))
    owned = Ownership.of(pool, readable=[1, 4], writable=[4])
    assert owned.pages(np.array([0, 15, 16, 79])).tolist() == [0, 0, 1, 4]
    pages = np.arange(-1, 7)
    readable = owned.allows(pages, write=False)
    assert pages[readable].tolist() == [1, 4]
    assert pages[owned.allows(pages, write=True)].tolist() == [4]
    nothing = Ownership.of(pool, readable=[])
    assert not nothing.allows(pages, write=False).any()


def test_pages_of_one_axis_within_another() -> None:
    """Keys and values as planes: a page has a part in each."""
    planes = torch.zeros((2, 6, 8))
    owned = Ownership.of(planes, readable=[1], axis=1)
    assert owned.pages(np.array([8, 15, 48 + 8, 48 + 16])).tolist() == [1, 1, 1, 2]


def test_pages_that_interleave_are_refused() -> None:
    with pytest.raises(ValueError, match="pages would interleave"):
        Ownership.of(torch.zeros(80).as_strided((4, 4), (8, 6)), readable=[1], axis=1)


def test_tensors_of_one_storage_share_what_is_known_of_it() -> None:
    memory, whole = Memory(), torch.zeros((2, 4), dtype=torch.int32)
    storage = memory.storage(whole[1])
    assert memory.storage(whole) is storage
    whole[1, 2] = 7
    assert storage.as_integers(32)[6] == 7


def test_addresses_of_a_table() -> None:
    memory, known, argument = Memory(), torch.zeros(4), torch.zeros(4)
    memory.table(known, name="known")
    memory.storage(argument)
    start, other = known.data_ptr(), argument.data_ptr()
    found = memory.at([start, start + 8, other + 4, 8])
    assert found[start].name == found[start + 8].name == "known"
    assert found[other + 4].size_bytes == 12
    assert 8 not in found


def test_an_address_between_rows_of_one_view_is_in_the_view_that_has_it() -> None:
    """Two states share pages of 8: three of the first, four of the second, padding."""
    memory, pool = Memory(), torch.zeros((3, 8), dtype=torch.int16)
    first, second = pool[:, :3], pool[:, 3:7]
    for name, view in (("first", first), ("second", second)):
        memory.table(view, name=name)
    start = pool.data_ptr()
    regions, which = memory.placed(start + 2 * np.arange(24))
    names = [region.name if region else "" for region in regions]
    page = ["first"] * 3 + ["second"] * 4
    # The last padding lies past both views; the page of it belongs to their storage.
    rest = f"memory at {start:#x}"
    assert [names[at] for at in which] == [*page, "first", *page, "first", *page, rest]
    (found,) = memory.at([start + 2 * 12]).values()
    assert found.name == "second"


def test_an_address_of_nothing_known_is_in_no_region() -> None:
    regions, which = Memory().placed(np.array([[8, 16]]))
    assert regions == (None,)
    assert which.tolist() == [[0, 0]]
