"""One executor on the default tree for all planted faults of a process."""

import os

import pytest

from fuzz.trees.release import DEFAULT_RELEASE
from tests.elsewhere import Elsewhere, Releases


@pytest.fixture(scope="session")
def subject(releases: Releases) -> Elsewhere:
    """Runs cases on the tree that KVFUZZ_VLLM names, or the default one."""
    return releases(os.environ.get("KVFUZZ_VLLM") or DEFAULT_RELEASE)
