"""Keeps the toy's property out of the harness's own tests, where it would be run bare.

Named on the command line, or through `--targets`, the property is still collected.
"""

import pytest

collect_ignore_glob = ["fuzz/*"]


@pytest.fixture(autouse=True)
def _no_tree_in_this_process() -> None:
    """The property, unlike a test of the harness, does import its tree."""
