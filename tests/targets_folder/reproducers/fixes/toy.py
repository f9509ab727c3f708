"""The toy's fix: rounding up by hand."""

from fuzz.edits import Replacement
from reproducers.fix import Fix


def divided(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    whole, rest = divmod(a, b)
    return whole + (rest > 0)


FIXES = (
    Fix(
        name="divide with remainder",
        sites=("cdiv",),
        edits=(
            Replacement(
                modules=("vllm.utils.math_utils",),
                function="cdiv",
                implementation="reproducers.fixes.toy:divided",
            ),
        ),
    ),
)
