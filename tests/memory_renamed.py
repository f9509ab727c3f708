"""Launches of kernels of which one operation got a name that nobody knows.

Run in the child: what the checker says of each is compared with the kernel as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from unittest import mock

from invariants.memory import launches
from invariants.memory.findings import Launch
from invariants.memory.ttir import Module, parse
from tests import memory_faults as faults
from tests import memory_traps as traps

KERNELS: dict[str, Callable[[], object]] = {
    "copy_row": lambda: faults.past_a_storage(5),
    "read_page": lambda: faults.pages([3, 0]),
    "padded_window": traps.padding,
    "random_index": traps.random_numbers,
    "nested_calls": traps.calls,
    "with_heuristic": traps.heuristic,
    "overlapping_trips": traps.trips,
    "counted": traps.unknown_mask,
    "searched": traps.searched,
}

_OPERATION = re.compile(r'^(\s*(?:%[^=]*= )?"?)([a-z]\w*)(\.[\w.]+)', re.MULTILINE)
# Without these a text is not a module, or its end is understood by its place.
_FRAME = ("tt.func", "tt.reduce.return", "tt.scan.return")


def renamed(kernel: str) -> Iterator[tuple[str, str, list[Launch]]]:
    """A name, the line that has it, and what is said: for each operation in turn.

    The first is the kernel as it is, under the name "".
    """
    text = _text(kernel)
    yield "", "", _said(kernel, text)
    for found in _OPERATION.finditer(text):
        if (found.group(2) + found.group(3)) in _FRAME:
            continue
        name = f"unheard{found.group(3)}"
        start, end = found.span(2)
        line = text[start : text.index("\n", start)]
        yield name, line, _said(kernel, f"{text[:start]}unheard{text[end:]}")


def all_renamed(kernel: str) -> list[tuple[str, str, list[Launch]]]:
    """All of them, to be sent to another process."""
    return list(renamed(kernel))


def _text(kernel: str) -> str:
    """The module of a kernel, as Triton makes it."""
    texts: list[str] = []

    def noting(text: str) -> Module:
        texts.append(text)
        return parse(text)

    launches._kernel.cache_clear()
    with mock.patch.object(launches, "parse", noting):
        KERNELS[kernel]()
    return texts[-1]


def _said(kernel: str, text: str) -> list[Launch]:
    """What is said of a kernel with that text."""
    made: list[Launch] = []

    def noting(**given: object) -> Launch:
        made.append(Launch(**given))  # type: ignore[arg-type]
        return made[-1]

    launches._kernel.cache_clear()
    with (
        mock.patch.object(launches, "parse", side_effect=lambda _: parse(text)),
        mock.patch.object(launches, "Launch", noting),
    ):
        try:
            KERNELS[kernel]()
        except AssertionError:
            # The case itself asks that nothing is said; that is judged elsewhere.
            assert made
    launches._kernel.cache_clear()
    return made
