"""What holds for every test of the harness."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.elsewhere import Elsewhere, Releases

# Files that take longest: begun first, so that two workers end at about the same time.
LONGEST = ("test_engine.py", "test_written.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `pytest tests`."""
    parser.addoption(
        "--slow", action="store_true", help="also run what is marked slow: minutes each"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what is slow, unless it was asked for; begin with the longest files."""
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(autouse=True)
def _no_tree_in_this_process() -> Iterator[None]:
    """A process has one tree for life: a test that took one would choose for others."""
    yield
    assert "vllm" not in sys.modules, "import vLLM in a child: see tests/elsewhere.py"


@pytest.fixture(scope="session")
def releases() -> Iterator["Releases"]:
    """Processes that have a release, one of each: importing it takes seconds."""
    from tests.elsewhere import Elsewhere

    with ExitStack() as running:

        @cache
        def release(spec: str) -> "Elsewhere":
            return running.enter_context(Elsewhere(spec))

        yield release
