"""What looks faulty and is right must stay silent, and be executed right."""

from collections.abc import Callable

import pytest

from tests import memory_traps as traps
from tests.memory_child import in_child


@pytest.mark.parametrize(
    ("case", "stored"),
    [
        (traps.padding, [24, 0, 0, 0, 16, 0, 0, 0]),
        (traps.floor_division, [0, 10, 10, 10, 11, 11, 11, 12]),
        (
            traps.siblings,
            [16 * block + at for block in range(4) for at in range(8, 16)],
        ),
        (traps.comes_back, [0, 1, 2, 3]),
        (traps.only_a_value, [0, 0]),
        (traps.expanded, [*range(8)] * 4),
        (traps.storage_offset, [28, 29, 30, 31]),
        (traps.bools, [1, 0, 1, 1]),
        (traps.tuples, [1, 2, 3, 4, 9, 10, 11, 12]),
        (traps.keywords, [4, 5, 6, 7]),
        (traps.heuristic, [1, 2, 3, 4, 5, 0, 0, 0]),
        (traps.calls, [14]),
        (traps.trips, [20, 21, 22, 23, 13]),
        (traps.same_in_the_end, [7]),
        (traps.bytes_of_either, [1, 11, 3, 13]),
        (traps.pointer_of_a_branch, [2, 3, 10, 11]),
        (traps.single, [0, 0, 7, 0]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_silent_and_right(case: Callable[[], list[int]], stored: list[int]) -> None:
    assert in_child(case) == stored


@pytest.mark.parametrize(
    "case", [traps.random_numbers, traps.hashes], ids=["philox", "multiply-shift"]
)
def test_hashes_are_meant_to_wrap(case: Callable[[], list[int]]) -> None:
    assert in_child(case)


def test_nothing_runs_in_a_grid_without_programs() -> None:
    launch = in_child(traps.no_programs)
    assert (launch.grid, launch.findings, launch.accesses) == ((0, 1, 1), (), 0)


def test_a_tensor_without_elements_may_be_passed_and_not_read() -> None:
    assert in_child(traps.empty_tensor, 0).findings == ()
    (finding,) = in_child(traps.empty_tensor, 1).findings
    assert (finding.tensor, finding.value, finding.limit) == ("source", 0, 0)


def test_annotated_parameters_are_as_wide_as_they_say() -> None:
    small, large = in_child(traps.annotated)
    assert small.findings == ()
    (finding,) = large.findings
    # In i32 this would have been a wrap to 0.
    assert (finding.kind, finding.value) == ("outside the view", 2**32)


def test_a_tensor_of_a_tuple_has_a_name() -> None:
    (finding,) = in_child(traps.past_a_tuple).findings
    assert (finding.tensor, finding.lane, finding.limit) == ("outs[1]", (3,), 3)


def test_an_autotuned_kernel_runs_the_configuration_that_is_asked_for() -> None:
    for configuration, programs in ((0, 3), (1, 2), (2, 3)):
        (launch,) = in_child(traps.tuned, 10, configuration)
        assert (launch.grid, launch.findings) == ((programs, 1, 1), ())
    (launch,) = in_child(traps.tuned, 9)
    assert [each.lane for each in launch.findings] == [(1,)] * len(launch.findings)
    assert {each.tensor for each in launch.findings} == {"source", "out"}


def test_each_launch_is_judged_by_its_own_strides() -> None:
    wide, dense, wrong = in_child(traps.other_strides)
    assert wide.findings == dense.findings == ()
    (finding,) = wrong.findings
    assert (finding.program, finding.value, finding.limit) == ((2, 0, 0), 32, 32)


def test_an_atomic_under_an_unknown_mask_leaves_what_is_not_known() -> None:
    launch = in_child(traps.unknown_mask)
    assert launch.findings == ()
    (doubt,) = launch.undecided
    assert doubt.reason.startswith("its address depends on")


def test_an_atomic_counts_what_its_mask_lets_it_reach() -> None:
    assert in_child(traps.tallied) == [2, 0, 0, 16]


def test_shifts_of_64_bits() -> None:
    assert in_child(traps.shift, 3, 1000).findings == ()
    (finding,) = in_child(traps.shift, 62, 1000).findings
    assert finding.value == 2**62
    (finding,) = in_child(traps.shift, 63, 1000).findings
    assert finding.value == -(2**63)


def test_loops_count_signed_numbers_as_the_compiler_says() -> None:
    assert in_child(traps.unsigned_loop, 2, 6) == [4]
    assert in_child(traps.unsigned_loop, -6, -2) == [4]


def test_memory_without_content_is_judged_all_the_same() -> None:
    launch = in_child(traps.virtual_store)
    assert launch.undecided == ()
    (finding,) = launch.findings
    assert (finding.kind, finding.lane, finding.lanes) == ("outside the view", (8,), 1)


def test_where_floats_were_stored_no_integers_are_known() -> None:
    _, beside, over, _, after = in_child(traps.floats_over_integers)
    assert beside.undecided == after.undecided == ()
    (doubt,) = over.undecided
    assert doubt.reason == "its address depends on what is not computed"
