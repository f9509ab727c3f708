"""The toy's fix: addition by Python."""

from fuzz.edits import Replacement
from reproducers.fix import Fix


def added(left: int, right: int) -> int:
    """The sum."""
    return left + right


FIXES = (
    Fix(
        name="add with Python's own addition",
        sites=("add",),
        edits=(
            Replacement(
                modules=("vllm.toy",),
                function="add",
                implementation="reproducers.fixes.toy:added",
            ),
        ),
    ),
)
