"""Every kind of finding: a planted kernel shows it, and a neighbour does not."""

import linecache
from pathlib import Path

import pytest

from invariants.memory.findings import Finding, Launch
from tests import memory_faults as planted
from tests.memory_child import in_child

KERNELS = Path(__file__).parent / "memory_kernels.py"


def only(launch: Launch) -> Finding:
    assert launch.undecided == ()
    (finding,) = launch.findings
    assert finding.file == str(KERNELS)
    assert finding.kernel == launch.kernel
    assert str(finding.line) not in finding.site
    return finding


def silent(*launches: Launch) -> bool:
    return all(each.findings == () == each.undecided for each in launches)


def source(finding: Finding) -> str:
    return linecache.getline(finding.file, finding.line).strip()


@pytest.mark.parametrize("first", [0, 4])
def test_the_ends_of_a_view_are_inside(first: int) -> None:
    assert silent(in_child(planted.outside, first))


def test_one_past_a_view_in_a_larger_storage() -> None:
    finding = only(in_child(planted.outside, 5))
    assert finding.kind == "outside the view"
    assert (finding.program, finding.lane, finding.lanes) == ((0, 0, 0), (3,), 1)
    assert (finding.value, finding.wrapped, finding.limit) == (8, 8, 8)
    assert finding.arithmetic == "element 8 of 8"
    assert (finding.tensor, finding.write) == ("source", False)
    assert source(finding) in {"tl.load(", "source + first + lanes,"}
    assert finding.expression == "tl.load(source + first + lanes)"


@pytest.mark.parametrize("case", [planted.outside, planted.before_a_view])
def test_one_before_a_view_is_the_previous_row_of_its_storage(case: object) -> None:
    finding = only(in_child(case, -1))  # type: ignore[arg-type]
    assert isinstance(finding, Finding)
    assert finding.kind == "outside the view"
    assert (finding.value, finding.lane, finding.lanes) == (-1, (0,), 1)
    assert finding.arithmetic == "element -1 of 8"


def test_between_the_rows_of_a_view_lies_its_sibling() -> None:
    assert silent(in_child(planted.between_rows, 4))
    finding = only(in_child(planted.between_rows, 5))
    assert finding.kind == "outside the view"
    assert finding.arithmetic == "element 3 is between the rows of the view"
    # Of four programs, one lane each.
    assert (finding.program, finding.lane, finding.lanes) == ((0, 0, 0), (3,), 4)
    assert (finding.value, finding.limit) == (3, 3 * 16 + 3)


def test_past_a_storage() -> None:
    assert silent(in_child(planted.past_a_storage, 4))
    finding = only(in_child(planted.past_a_storage, 5))
    assert finding.kind == "outside the view"
    assert (finding.program, finding.lane, finding.lanes) == ((4, 0, 0), (0,), 8)
    assert (finding.value, finding.limit) == (32, 32)
    assert source(finding) == finding.expression.join(["found = ", ""])


@pytest.mark.parametrize(
    ("page", "state"), [(0, "null"), (2, "freed"), (6, "nobody's or another's")]
)
def test_a_page_that_is_not_the_request_s(page: int, state: str) -> None:
    assert silent(in_child(planted.pages, [3, 5]))
    finding = only(in_child(planted.pages, [3, page]))
    assert finding.kind == "page not owned"
    assert (finding.program, finding.lane, finding.lanes) == ((1, 0, 0), (0,), 16)
    assert (finding.value, finding.limit) == (16 * page, page)
    assert finding.arithmetic == (
        f"element {16 * page} is in page {page}, which is {state}"
    )


def test_a_page_that_may_be_read_and_not_written() -> None:
    assert silent(in_child(planted.pages, [5], write=True))
    finding = only(in_child(planted.pages, [3], write=True))
    assert (finding.kind, finding.write) == ("page not owned", True)
    assert (finding.value, finding.limit, finding.lanes) == (48, 3, 16)


def test_a_product_wraps_on_its_way_to_an_address() -> None:
    stride = 901120
    assert silent(in_child(planted.virtual_pages, 2383, stride=stride))
    assert silent(in_child(planted.virtual_pages, 2384, stride=stride, wide=True))
    finding = only(in_child(planted.virtual_pages, 2384, stride=stride))
    assert finding.kind == "wrapped"
    assert (finding.program, finding.lane, finding.lanes) == ((1, 0, 0), (0,), 16)
    assert finding.value == 2384 * stride
    assert finding.wrapped == 2384 * stride - 2**32
    assert finding.limit == 2**31 - 1
    assert finding.arithmetic == (
        "block * stride: 2384 x 901120 = 2148270080 > 2147483647"
    )


def test_the_smallest_factor_that_wraps_is_told() -> None:
    finding = only(in_child(planted.virtual_pages, 2577, stride=901120))
    assert finding.arithmetic == (
        "block * stride: 2384 x 901120 = 2148270080 > 2147483647; here 2322186240"
    )


def test_a_product_wraps_on_its_way_to_a_mask_alone() -> None:
    assert silent(in_child(planted.mask_of_a_product, 2047, 2**20))
    finding = only(in_child(planted.mask_of_a_product, 2048, 2**20))
    assert finding.kind == "wrapped"
    # The address itself is right: lanes are read that should not be.
    assert (finding.value, finding.wrapped, finding.lanes) == (0, 0, 8)
    assert finding.limit == 2**31 - 1
    assert finding.arithmetic == (
        "block * stride: 2048 x 1048576 = 2147483648 > 2147483647"
    )


def test_a_branch_on_what_wrapped_is_not_decided() -> None:
    assert silent(in_child(planted.branch_of_a_product, 2047))
    launch = in_child(planted.branch_of_a_product, 2048)
    (doubt,) = launch.undecided
    assert doubt.reason == "a branch's condition has wrapped"
    assert doubt.place.startswith(str(KERNELS))


def test_scratch_that_nothing_stored_to() -> None:
    assert silent(*in_child(planted.scratch, 8))
    filled, read = in_child(planted.scratch, 7)
    assert silent(filled)
    finding = only(read)
    assert finding.kind == "never written"
    assert (finding.lane, finding.lanes, finding.value, finding.limit) == (
        (7,),
        1,
        7,
        8,
    )
    assert finding.arithmetic == "element 7 of 8 holds what no launch stored"


def test_one_element_gets_two_values() -> None:
    assert silent(in_child(planted.stored_twice, 0))
    finding = only(in_child(planted.stored_twice, 2))
    assert finding.kind == "stored twice"
    assert (finding.program, finding.lane, finding.value) == ((1, 0, 0), (), 42)
    assert finding.arithmetic == "element 0 gets 40 of program 0 and 42 of program 1"


def test_a_store_to_an_input() -> None:
    assert silent(in_child(planted.read_only, protected=False))
    finding = only(in_child(planted.read_only, protected=True))
    assert (finding.kind, finding.write) == ("read-only", True)
    assert (finding.value, finding.limit, finding.lanes) == (0, 4, 3)
    assert finding.arithmetic == "element 0 of 4 is an input"


def test_past_a_tensor_that_a_table_of_addresses_names() -> None:
    assert silent(in_child(planted.table_of_addresses, 8))
    finding = only(in_child(planted.table_of_addresses, 9))
    assert (finding.kind, finding.tensor) == ("outside the view", "target 0")
    assert (finding.lane, finding.value, finding.limit) == ((8,), 8, 8)
    assert finding.lanes == 1


def test_an_address_in_the_middle_of_a_known_tensor() -> None:
    finding = only(in_child(planted.table_of_addresses, 8, shift=4))
    assert (finding.tensor, finding.lane, finding.value) == ("target 0", (7,), 8)


def test_an_address_of_nothing_known() -> None:
    finding = only(in_child(planted.table_of_addresses, 8, known=False))
    assert (finding.kind, finding.tensor) == ("outside the view", "an address")
    assert finding.lanes == 16
