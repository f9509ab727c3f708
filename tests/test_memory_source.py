"""The source of an operation: one line, and the expression that is meant."""

from pathlib import Path

import pytest

from invariants.memory.source_text import expression_at

SOURCE = """\
def kernel(p, q, n, stride):
    found = tl.load(
        p
        + row * stride  # of the row
        + 2,
        mask=row < n,
    )
    tl.store(q + n, tl.load(p + n))
    at = a * b + c * d
    at *= stride
    for i in tl.range(0, (n + 1) * stride):
        tl.atomic_add(p + i * stride + i, 1)
    value = helper(p, n)
    kept = a_longer_name_as_well.load(
        p_with_a_long_name + first_offset * first_stride + last_offset * last_stride
    )
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


def place(text: str, line: int, *, nth: int = 0) -> tuple[int, int]:
    """Line, and column from 0, of a text in the source."""
    row = SOURCE.split("\n")[line - 1]
    column = -1
    for _ in range(nth + 1):
        column = row.index(text, column + 1)
    return line, column


LOAD = "tl.load(p + row * stride + 2, mask=row < n)"


@pytest.mark.parametrize(
    ("operation", "at", "expected"),
    [
        # As 3.6 and 3.7 note it: at the last argument, or the right operand.
        ("tt.load", place("p", 3), LOAD),
        ("arith.muli", place("stride", 4), "row * stride"),
        ("tt.addptr", place("row", 4), "p + row * stride"),
        ("tt.addptr", place("2", 5), "p + row * stride + 2"),
        ("tt.store", place("tl.load", 8), "tl.store(q + n, tl.load(p + n))"),
        ("tt.load", place("p", 8), "tl.load(p + n)"),
        ("arith.muli", place("b", 9), "a * b"),
        ("arith.muli", place("d", 9), "c * d"),
        ("arith.muli", place("stride", 10), "at *= stride"),
        ("tt.atomic_rmw", place("1", 12), "tl.atomic_add(p + i * stride + i, 1)"),
        # As 3.9 notes it: at its start, columns from 1.
        ("tt.load", (2, 4 + 8 + 1), LOAD),
        ("arith.muli", (4, 10 + 1), "row * stride"),
        ("tt.addptr", (3, 8 + 1), "p + row * stride"),
        ("arith.muli", (9, 9 + 1), "a * b"),
        ("tt.load", (8, 20 + 1), "tl.load(p + n)"),
        # Where the operation has no expression of its own: the statement, or its head.
        ("tt.load", place("n", 13), "value = helper(p, n)"),
        ("scf.for", place("tl", 11), "for i in tl.range(0, (n + 1) * stride):"),
        ("arith.muli", place("stride", 11), "(n + 1) * stride"),
    ],
)
def test_the_expression_that_is_meant(
    file: str, operation: str, at: tuple[int, int], expected: str
) -> None:
    assert expression_at(file, *at, operation) == expected


def test_what_is_long_is_cut(file: str) -> None:
    text = expression_at(file, *place("p_with", 15), "tt.load")
    assert len(text) == 100
    assert text.startswith(
        "a_longer_name_as_well.load(p_with_a_long_name + first_offset"
    )
    assert text.endswith("…")


def test_no_source_and_no_python(tmp_path: Path) -> None:
    assert expression_at(str(tmp_path / "none.py"), 1, 0, "tt.load") == ""
    path = tmp_path / "text.py"
    path.write_text("  what is not Python\n", encoding="utf-8")
    assert expression_at(str(path), 1, 4, "tt.load") == "what is not Python"
    assert expression_at(str(path), 9, 4, "tt.load") == ""
