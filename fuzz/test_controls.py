"""Planted faults that every run must find, or it is void; never findings."""

from fuzz.campaign import Worker, find_canary, find_controls


def test_control(worker: Worker, control: str) -> None:
    """The control of a target, or the canary, is found."""
    found = (
        find_canary(worker) if control == "canary" else find_controls(worker, control)
    )
    assert found, f"the control {control} was not found: this run proves nothing"
