"""Saved faults, replayed before anything is searched."""

from collections.abc import Callable


def test_saved(saved: str, replay_saved: Callable[[str], None]) -> None:
    """The saved fault does what the ledger says of this tree."""
    replay_saved(saved)
