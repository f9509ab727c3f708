"""Mechanical faults: made as they should be, and a sample of them hunted.

The whole kill rate is printed by `python -m tests.quality`.
"""

import pytest

from fuzz.execution import Executor
from tests.elsewhere import Elsewhere
from tests.quality.mechanical import mechanical_of_source
from tests.quality.suite import (
    explained_survivors,
    hunt_mechanical,
    mechanical_of,
)

SOURCE = '''
def clamp(value, low, high):
    """Keep a value in bounds."""
    if value < low and low > 0:
        value = low
    return value if value <= high - 1 else high
'''

# One in so many is hunted here, so that the suite stays short; and an isolated target's
# take minutes each, so that only the command hunts them.
STRIDE = 9
IN_PROCESS = ("mamba_block_table", "page_size")


def test_a_function_is_changed_in_one_place_at_a_time() -> None:
    names = [mutant.name for mutant in mechanical_of_source("clamp", ("m",), SOURCE)]
    expected = (
        "Lt becomes LtE in value < low",
        "And becomes Or in value < low and low > 0",
        "Gt becomes GtE in low > 0",
        "0 becomes 1",
        "not (value < low and low > 0)",
        "LtE becomes Lt in value <= high - 1",
        "Sub becomes Add in high - 1",
        "1 becomes 2",
        "not (value <= high - 1)",
        "drop value = low",
        "drop if value < low and low > 0:",
    )
    for text in expected:
        assert any(name.endswith(text) for name in names), text
    assert len(names) == len(expected)


def test_a_mechanical_fault_replaces_the_whole_function() -> None:
    for mutant in mechanical_of_source("clamp", ("m",), SOURCE):
        assert mutant.edit.old == SOURCE
        assert mutant.edit.new != SOURCE
        compile(mutant.edit.new, "mutant", "exec")


def unexplained_survivors(executor: Executor, target: str) -> list[str]:
    every = mechanical_of(target)
    assert every, "no function of this target is in the tree"
    explained = explained_survivors()
    return [
        mutant.name
        for mutant in every[::STRIDE][:12]
        if mutant.name not in explained
        and not hunt_mechanical(executor, target, mutant).found
    ]


@pytest.mark.subject
@pytest.mark.quality
@pytest.mark.parametrize("target", IN_PROCESS)
def test_a_sample_of_mechanical_faults_is_found(
    subject: Elsewhere, target: str
) -> None:
    survivors = subject.call(unexplained_survivors, target)
    assert not survivors, "neither found nor explained in survivors.toml"
