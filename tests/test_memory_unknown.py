"""An operation that nobody knows leaves a launch undecided: no pass, and no crash."""

import pytest

from invariants.memory.findings import Launch
from tests import memory_traps as traps
from tests.memory_child import in_child
from tests.memory_renamed import KERNELS, all_renamed


def reasons(launches: list[Launch]) -> list[str]:
    return [each.reason for launch in launches for each in launch.undecided]


def messages(launches: list[Launch]) -> list[str]:
    return [each.message for launch in launches for each in launch.findings]


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_operation_in_turn(kernel: str) -> None:
    (_, _, before), *rest = in_child(all_renamed, kernel)
    assert rest
    named = 0
    for name, line, after in rest:
        assert set(messages(after)) <= set(messages(before)), line
        told = [each for each in reasons(after) if name in each]
        named += bool(told)
        if told:
            continue
        # Nothing that is judged depends on it, or did so before for another reason.
        assert messages(after) == messages(before), line
        assert reasons(after) == reasons(before), line
    # Of the random numbers, some become floats, and of the others, all matter.
    assert named > len(rest) // 2


def test_it_is_named_and_its_place_is_told() -> None:
    _, *rest = in_child(all_renamed, "read_page")
    for name, line, after in rest:
        places = [
            each.place
            for launch in after
            for each in launch.undecided
            if name in each.reason
        ]
        assert places, line
        assert all("memory_kernels.py:" in each for each in places), line


def test_a_call_is_one_of_them() -> None:
    """The planted kernel has a device function that was not inlined."""
    names = [name for name, _, _ in in_child(all_renamed, "nested_calls")]
    assert "unheard.call" in names


def test_what_may_store_is_not_passed_over() -> None:
    stored = [
        after
        for name, _, after in in_child(all_renamed, "copy_row")
        if name == "unheard.store"
    ]
    assert [reasons(each) for each in stored] == [["unheard.store is not known"]]


def test_a_float_comparison_is_named() -> None:
    (doubt,) = in_child(traps.unknown_address).undecided
    assert doubt.reason == (
        "its address depends on arith.fptosi, which is not computed"
    )
    assert "memory_kernels.py:" in doubt.place
