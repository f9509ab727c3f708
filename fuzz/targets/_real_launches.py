"""The catalogue of correct launches of vLLM's kernels; what the checker says of each.

Each is a call of vLLM's own wrapper at the shapes of real models, with ownership,
inputs and scratch declared as its contract has them. None may have a finding.
"""

from dataclasses import dataclass

from fuzz.targets import (
    _real_attention,
    _real_cache_writes,
    _real_recurrent,
    _real_sampling,
    _real_states,
    _real_tables,
)
from fuzz.targets._real_launch import RealLaunch
from invariants.memory.findings import Finding, Launch, Undecided
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory

LAUNCHES: tuple[RealLaunch, ...] = (
    *_real_attention.LAUNCHES,
    *_real_cache_writes.LAUNCHES,
    *_real_tables.LAUNCHES,
    *_real_states.LAUNCHES,
    *_real_recurrent.LAUNCHES,
    *_real_sampling.LAUNCHES,
)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What became of a launch.

    Attributes:
        absent: Why the tree has no such launch, "" when it ran.
        missing: Kernels that it should have reached and did not, by their names.
    """

    absent: str = ""
    launches: tuple[Launch, ...] = ()
    missing: tuple[tuple[str, ...], ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all launches."""
        return tuple(each for launch in self.launches for each in launch.findings)

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """Of all launches."""
        return tuple(each for launch in self.launches for each in launch.undecided)


def checked(launch: RealLaunch) -> Checked:
    """Run a launch in the checker's address mode, on the activated tree.

    Raises:
        AssertionError: The integers that the kernels computed are not those that the
            launch expects.
    """
    absent = launch.absent()
    if absent is not None:
        return Checked(absent=absent)
    memory = Memory()
    with checked_launches(memory) as log:
        launch.run(memory)
    reached = {each.kernel for each in log.launches}
    return Checked(
        launches=tuple(log.launches),
        missing=tuple(each for each in launch.kernels if not reached & set(each)),
    )
