"""Addresses that a kernel computes as numbers belong to the views that have them."""

from tests import memory_addresses as addresses
from tests.memory_child import in_child


def test_states_that_share_pages_are_told_apart() -> None:
    launch, page = in_child(addresses.copied, size=6)
    assert launch.findings == ()
    assert launch.undecided == ()
    assert page == [0, 1, 2, *range(19, 24)]


def test_a_copy_that_reaches_the_neighbour_is_found() -> None:
    launch, _ = in_child(addresses.copied, size=8)
    found = {(each.kind, each.tensor, each.write) for each in launch.findings}
    assert found == {
        ("page not owned", "second", False),
        ("page not owned", "second", True),
    }


def test_as_many_addresses_as_bytes() -> None:
    assert in_child(addresses.many_addresses) == list(range(1 << 15))


def test_a_page_past_2_gib() -> None:
    assert in_child(addresses.far_page, page=2048, wide=True).findings == ()
    (finding,) = in_child(addresses.far_page, page=2048, wide=False).findings
    assert finding.kind == "wrapped"
    assert finding.arithmetic.endswith("2048 x 1048576 = 2147483648 > 2147483647")
    assert in_child(addresses.far_page, page=2047, wide=False).findings == ()
