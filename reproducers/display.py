"""Shows values to people: rich on a terminal, plain lines and columns elsewhere.

What comes from files is shown as text only: no markup, no control characters.
"""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

WAIT_SHOWN_S = 2.0


def harmless(text: str) -> str:
    """Text without control characters other than line ends."""
    return "".join(
        c if c.isprintable() or c == "\n" else f"<{ord(c):#x}>" for c in text
    )


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
        """One result line."""
        self._clear()
        self._out.print(Text(harmless(text), style=style))

    def note(self, text: str) -> None:
        """One line about what is going on."""
        self._clear()
        self._err.print(Text(harmless(text), style="dim"))

    def error(self, text: str) -> None:
        """Why a command cannot do what was asked."""
        self._clear()
        self._err.print(Text(f"error: {harmless(text)}", style="red"))

    def waiting(self, what: str, seconds: float) -> None:
        """Tell of something that takes more than two seconds."""
        if seconds < WAIT_SHOWN_S:
            return
        if self._err.is_terminal:
            self._told = what
            text = Text(f"\r{harmless(what)}: {seconds:.0f} s", style="dim")
            self._err.print(text, end="")
        elif self._told != what:
            self._told = what
            self._err.print(Text(f"{harmless(what)} …"))

    def _clear(self) -> None:
        if self._told and self._err.is_terminal:
            self._err.print(Text("\r" + " " * (len(self._told) + 10) + "\r"), end="")
            self._told = ""

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; on a terminal its last column wraps, elsewhere nothing does."""
        self._clear()
        clean = [[harmless(cell).replace("\n", " ") for cell in row] for row in rows]
        if self._out.is_terminal:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for heading in headings:
                last = heading == headings[-1]
                table.add_column(heading, no_wrap=not last, overflow="fold")
            for row in clean:
                table.add_row(*map(Text, row))
            Console(file=self._out.file, highlight=False).print(table)
            return
        grid = [list(headings), *clean]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        for row in grid:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self.line("  ".join(cells).rstrip())
