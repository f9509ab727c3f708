"""What an H200 left of launches, beside what the memory checker makes of them.

The recording is made by `python -m benchmarks.card`; no card is needed here.
"""

import gzip
from pathlib import Path

import msgspec
import pytest

from tests.memory_child import in_child
from tests.recorded import CHECKS, KERNELS, Recorded, compared

RECORDING = Path(__file__).parents[1] / "benchmarks/results/h200-torch211-triton36"
# All of them: `python -m benchmarks.card compare`.
STEP = 4
# A card divides float32 numbers, and takes exponentials, by approximations; value mode
# rounds once. Differing numbers of 256, and units in the last place.
APPROXIMATE = {
    "two_numbers(divide, float32)": 64,
    "one_number(exp, float32)": 8.0,
    "one_number(tanh, float32)": 2.0,
}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    packed = RECORDING.with_suffix(".json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=Recorded)


def test_integers_are_a_cards_bit_for_bit(recorded: Recorded) -> None:
    results = in_child(compared, recorded.programs[::STEP])
    other = [
        each.program.source
        for each, result in zip(recorded.programs[::STEP], results, strict=True)
        if result == "other"
    ]
    assert other == []
    assert results.count("same") >= 0.9 * len(results) >= 90


def test_another_memory_is_noticed(recorded: Recorded) -> None:
    first = recorded.programs[0]
    wrong = msgspec.structs.replace(
        first, outputs=(*first.outputs[:-1], first.outputs[0])
    )
    assert in_child(compared, (first, wrong)) == ["same", "other"]


def test_floats_are_a_cards_within_what_is_stated(recorded: Recorded) -> None:
    assert recorded.checks.keys() == CHECKS.keys()
    beyond = {
        name: result
        for name, result in recorded.checks.items()
        if isinstance(result, str) or result >= APPROXIMATE.get(name, 1.0)
    }
    assert beyond == {}


@pytest.mark.parametrize("release", ["0.33.0", "0.20.1"])
def test_kernels_of_a_release_are_near_their_references_on_a_card(
    recorded: Recorded, release: str
) -> None:
    made = recorded.kernels[release]
    assert made.keys() == KERNELS.keys()
    assert [name for name, each in made.items() if not each.kernels] == []
    beyond = {name for name, each in made.items() if max(each.excess.values()) > 1.0}
    # A fault of that release, which value mode shows too.
    assert beyond == ({"after a masked tile"} if release == "0.20.1" else set())
    assert sum(not why for why in recorded.launches[release].values()) >= 15
