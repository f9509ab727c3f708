"""Generated integer kernels leave the same memory in the checker and the interpreter.

Known to differ in Triton's interpreter, and therefore not generated: `umulhi` of signed
numbers multiplies what is sign-extended; parameter annotations are ignored; sums are
added up in 64 bits, and one that does not fit its type is an error there (a `gap`).
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.memory_differential import Sides
from tests.memory_programs import Program, programs

EXAMPLES = 150


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with Sides() as opened:
        yield opened


def test_memory_is_the_same_bit_for_bit(sides: Sides) -> None:
    came: Counter[str] = Counter()

    @seed(3)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(programs())
    def same(program: Program) -> None:
        result = sides.compare(program)
        came[result] += 1
        assert result in {"same", "wrapped", "gap"}, f"{result}\n{program.source}"

    same()
    assert came["same"] >= 0.7 * EXAMPLES
    assert came["gap"] <= 0.05 * EXAMPLES


def test_a_difference_is_told(sides: Sides) -> None:
    program = Program(
        source=SOURCE,
        inputs=("int32",),
        outputs=("int32",),
        stores=1,
        grid=(2,),
        numbers=(),
        seed=0,
    )
    assert sides.compare(program) == (
        "tensor 1 differs at 0: the checker has 1, the interpreter 0"
    )


# A process of the interpreter has another mode, which a kernel can ask for.
SOURCE = '''\
"""A kernel that is another one in each process."""

import triton
import triton.language as tl

COMPILED = tl.constexpr(0 if triton.knobs.runtime.interpret else 1)


@triton.jit
def kernel(in0, out0, STORES: tl.constexpr):
    tl.store(out0 + tl.program_id(0) * STORES, COMPILED)
'''
