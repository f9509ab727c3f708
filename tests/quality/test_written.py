"""Each written fault is found within its number of cases and shrunk to its size."""

import pytest

from tests.elsewhere import Elsewhere
from tests.quality.mutant import Mutant
from tests.quality.suite import hunt_written, mutant_targets, written

pytestmark = [pytest.mark.subject, pytest.mark.quality]

MUTANTS = [
    pytest.param(target, mutant, id=f"{target}: {mutant.name}")
    for target in mutant_targets()
    for mutant in written(target)
]


def test_every_target_has_at_least_three_written_faults() -> None:
    assert mutant_targets()
    for target in mutant_targets():
        assert len(written(target)) >= 3, target


@pytest.mark.parametrize(("target", "mutant"), MUTANTS)
def test_written_fault(subject: Elsewhere, target: str, mutant: Mutant) -> None:
    hunt = subject.call(hunt_written, target, mutant)
    assert hunt.found, f"not found within {mutant.cases} cases"
    assert hunt.invariant in mutant.invariants
    assert mutant.site in {"", hunt.site}
    assert len(hunt.shrunk) <= mutant.size, hunt.shrunk
