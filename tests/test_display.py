"""What people see on a terminal of some width, and elsewhere."""

import io
import re
from pathlib import Path

import pytest

from reproducers.display import Display, shown_path

WORDS = (
    "one request of 4096 tokens needs 87 blocks, and 86 are left beside the null block"
)
ROWS = [("page-size-0a1b2c3d", "crash", WORDS), ("toy-0a1b2c3d", "waste", "brief")]


class Terminal(io.StringIO):
    """Takes what is written to a terminal; shows what a person sees of it."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())
        # What stands before the last carriage return was erased and overwritten.
        seen = [line.rpartition("\r\x1b[2K")[2] for line in plain.split("\n")]
        return [line.rstrip() for line in seen]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")


def test_what_is_waited_for_is_redrawn_on_one_line_and_taken_back() -> None:
    terminal = Terminal()
    display = Display(out=terminal, err=terminal)
    for seconds in (1.0, 2.0, 3.0):
        display.waiting("replaying on 0.33.0", seconds)
    assert terminal.screen == ["replaying on 0.33.0: 3 s"]
    display.line("REPRODUCED")
    assert terminal.screen == ["REPRODUCED", ""]
    display.waiting("replaying on " + "x" * 90, 4.0)
    assert len(terminal.screen[-1]) < 60
    display.done_waiting()
    assert terminal.screen == ["REPRODUCED", ""]


def test_elsewhere_waiting_is_told_once() -> None:
    err = io.StringIO()
    display = Display(out=io.StringIO(), err=err)
    for seconds in (2.0, 3.0):
        display.waiting("replaying on 0.33.0", seconds)
    display.done_waiting()
    assert err.getvalue() == "replaying on 0.33.0 …\n"


def test_prose_wraps_between_words_below_its_start() -> None:
    terminal = Terminal()
    Display(out=terminal).prose("  broken arm: ", f"fails: {WORDS}")
    first, *others, last = terminal.screen
    assert last == ""
    assert first.startswith("  broken arm: fails: one request")
    assert all(line.startswith(" " * 14) and len(line) <= 60 for line in others)
    assert " ".join(line.strip() for line in terminal.screen).split() == (
        f"broken arm: fails: {WORDS}".split()
    )
    errors = Terminal()
    Display(err=errors).error(f"{WORDS}\n{WORDS}")
    assert errors.screen[0].startswith("error: one request")
    assert all(len(line) <= 60 for line in errors.screen)
    assert sum(line.startswith("       one request") for line in errors.screen) == 1
    out = io.StringIO()
    Display(out=out).prose("  broken arm: ", WORDS)
    assert out.getvalue() == f"  broken arm: {WORDS}\n"


def test_a_path_is_shown_as_people_type_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "cases" / "x") == "cases/x"
    assert shown_path(Path("cases/x")) == "cases/x"
    assert shown_path(tmp_path.parent / "x") == str(tmp_path.parent / "x")


@pytest.mark.parametrize(("columns", "below"), [("60", True), ("90", False)])
def test_a_table_shows_every_column_in_full(
    monkeypatch: pytest.MonkeyPatch, columns: str, *, below: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    terminal = Terminal()
    Display(out=terminal).table(("ID", "severity", "cause"), ROWS)
    assert max(map(len, terminal.screen)) <= int(columns)
    text = " ".join(" ".join(terminal.screen).split())
    for _, severity, cause in ROWS:
        assert f"{severity} {cause}" in text
    assert ("cause" in terminal.screen[0]) != below
    assert ("    brief" in terminal.screen) == below
