"""Accesses through tensor descriptors and block pointers are judged, and executed."""

from collections.abc import Callable

import pytest

from invariants.memory.findings import Launch
from tests import memory_descriptors as described
from tests.memory_child import in_child

Case = Callable[[int], tuple[Launch, list[list[int]]]]
ROWS, COLUMNS = 20, 32


@pytest.mark.parametrize("case", [described.by_kernel, described.by_host])
def test_lanes_outside_of_the_described_tensor_are_left_out(case: Case) -> None:
    launch, out = in_child(case, ROWS)
    assert (launch.findings, launch.undecided) == ((), ())
    left = [[COLUMNS * row + column for column in range(16)] for row in range(ROWS)]
    assert out == [[0] * 16 + row for row in left]


@pytest.mark.parametrize("case", [described.by_kernel, described.by_host])
def test_a_descriptor_of_one_row_too_many_leaves_the_tensor(case: Case) -> None:
    launch, _ = in_child(case, ROWS + 1)
    assert launch.undecided == ()
    places = {(each.tensor, each.expression.split("(")[0]) for each in launch.findings}
    assert len(launch.findings) == 2
    assert {name for name, _ in places} & {"source", "read"}
    assert {name for name, _ in places} & {"out", "write"}


def test_block_pointers_too() -> None:
    launch, out = in_child(described.by_blocks, ROWS)
    assert (launch.findings, launch.undecided) == ((), ())
    assert out == [[16 * row + column for column in range(16)] for row in range(ROWS)]
    launch, _ = in_child(described.by_blocks, ROWS + 1)
    assert {each.tensor for each in launch.findings} == {"read", "write"}
