"""Shows values to people: prose wraps on a terminal, elsewhere a line stays one.

What comes from files is shown as text only: no markup, no control characters.
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

WAIT_SHOWN_S = 2.0
# In a narrower column prose is hard to read, and gets lines of its own.
PROSE_WIDTH_MIN = 60


def harmless(text: str) -> str:
    """Text without control characters other than line ends."""
    return "".join(
        c if c.isprintable() or c == "\n" else f"<{ord(c):#x}>" for c in text
    )


def shown_path(path: Path) -> str:
    """Below the working directory as people type it, else whole."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


class Display:
    """Writes to one stream; what takes time is told on another.

    Args:
        out: Where results go.
        err: Where progress goes.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = Console(file=out or sys.stdout, highlight=False, soft_wrap=True)
        self._err = Console(file=err or sys.stderr, highlight=False, soft_wrap=True)
        self._told = ""

    def line(self, text: str, *, style: str = "") -> None:
        """One result line, never wrapped by us: it may be there to be copied."""
        self.done_waiting()
        self._out.print(Text(harmless(text), style=style))

    def prose(self, lead: str, text: str, *, style: str = "") -> None:
        """Text after a lead; on a terminal it wraps between words, below its start."""
        for line in _wrapped(self._out, lead, text):
            self.line(line, style=style)

    def note(self, text: str) -> None:
        """One line about what is going on."""
        self.done_waiting()
        self._err.print(Text(harmless(text), style="dim"))

    def error(self, text: str) -> None:
        """Why a command cannot do what was asked."""
        self.done_waiting()
        for line in _wrapped(self._err, "error: ", harmless(text)):
            self._err.print(Text(line, style="red"))

    def waiting(self, what: str, seconds: float) -> None:
        """Tell of something that takes more than two seconds."""
        if seconds < WAIT_SHOWN_S:
            return
        if self._redraws:
            self.done_waiting()
            self._told = what
            text = Text(f"{harmless(what)}: {seconds:.0f} s", style="dim")
            # A line that wraps could not be redrawn.
            text.truncate(max(self._err.width - 1, 1), overflow="ellipsis")
            self._err.print(text, end="")
        elif self._told != what:
            self._told = what
            self._err.print(Text(f"{harmless(what)} …"))

    def done_waiting(self) -> None:
        """Take back from the terminal what it was told of waiting."""
        if self._told and self._redraws:
            # A carriage return inside a text would be dropped as a control character.
            whole_line = (ControlType.ERASE_IN_LINE, 2)
            self._err.control(Control(ControlType.CARRIAGE_RETURN, whole_line))
            self._told = ""

    @property
    def _redraws(self) -> bool:
        return self._err.is_terminal and not self._err.is_dumb_terminal

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; its last column is prose, below the others where it has no room."""
        clean = [[harmless(cell).replace("\n", " ") for cell in row] for row in rows]
        grid = [list(headings), *clean]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        narrow = self._out.width - sum(widths[:-1]) - 2 * len(widths[:-1])
        below = self._out.is_terminal and narrow < PROSE_WIDTH_MIN
        for number, (*cells, last) in enumerate(grid):
            padded = [
                cell.ljust(width)
                for cell, width in zip(cells, widths[:-1], strict=True)
            ]
            style = "" if number else "bold"
            lead = "  ".join([*padded, ""])
            if below:
                self.line(lead.rstrip(), style=style)
                lead = "    "
            if number or not below:
                self.prose(lead, last, style=style)


def _wrapped(console: Console, lead: str, text: str) -> list[str]:
    """Lines of a text after a lead; a stream that is no terminal has one for each."""
    if not console.is_terminal:
        return [f"{lead}{text}"]
    return [
        wrapped
        for number, line in enumerate(text.splitlines() or [""])
        for wrapped in textwrap.wrap(
            line,
            max(console.width, len(lead) + 1),
            initial_indent=" " * len(lead) if number else lead,
            subsequent_indent=" " * len(lead),
            break_on_hyphens=False,
        )
        or [lead]
    ]
