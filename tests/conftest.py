"""What holds for every test of the harness."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_tree_in_this_process() -> Iterator[None]:
    """A process has one tree for life: a test that took one would choose for others."""
    yield
    assert "vllm" not in sys.modules, "import vLLM in a child: see tests/elsewhere.py"
