"""One executor on the default tree for all planted faults of a process."""

from collections.abc import Iterator

import pytest

from tests.elsewhere import Elsewhere


@pytest.fixture(scope="session")
def subject() -> Iterator[Elsewhere]:
    """Runs cases on the tree that KVFUZZ_VLLM names, or the default one."""
    with Elsewhere(None) as running:
        yield running
