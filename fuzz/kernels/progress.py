"""How far the survey of kernels is: a line redrawn on a terminal, elsewhere a few."""

import sys
import time

_REDRAW_S = 0.5
_LINE_S = 15.0


class Progress:
    """Tells on stderr how many kernels are done.

    Args:
        total: Kernels that will be done.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._terminal else _LINE_S)

    def done(self, count: int) -> None:
        """So many are done."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_REDRAW_S if self._terminal else _LINE_S)
        self._write(f"{count} of {self._total} kernels lowered or given up")

    def close(self) -> None:
        """Take the redrawn line away."""
        if self._terminal:
            self._write("")

    def _write(self, line: str) -> None:
        ends = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        sys.stderr.write(f"{ends[0]}{line}{ends[1]}")
        sys.stderr.flush()
