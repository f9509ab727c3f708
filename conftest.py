"""Where the rooms meet: the plugin, and the reproducers it saves to and replays."""

import pytest

from fuzz.controller import SAVED_FAULTS
from reproducers.campaigns import SavedFaultStore

pytest_plugins = ("fuzz.plugin",)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the plugin the store of saved faults."""
    config.stash[SAVED_FAULTS] = SavedFaultStore.from_environment()
