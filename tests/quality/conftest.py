"""One executor on the default tree for all planted faults of a process."""

from collections.abc import Iterator

import pytest

from fuzz.campaign import import_rooms
from fuzz.execution import Executor
from fuzz.trees import activate, resolve


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """Runs cases on the tree that KVFUZZ_VLLM names, or the default one."""
    tree = resolve(None)
    activate(tree)
    import_rooms()
    with Executor(tree=tree) as running:
        yield running
