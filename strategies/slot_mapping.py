"""Steps whose tokens are mapped to slots, of both runners.

Block sizes and ranks come from a short list, as they are compiled in.
"""

from hypothesis import strategies as st

from invariants.model import Origin
from invariants.slot_mapping import Case
from invariants.table_case import Group, Tables
from strategies.block_sizes import NARROW, ODD, WIDE, WIDER
from strategies.table_rows import states_of, tables

# Groups by their blocks and kernels' blocks; ranks, those of prefills, tokens in turn.
_Configuration = tuple[tuple[Group, ...], int, int, int]


def _plain(*block_sizes: int) -> tuple[Group, ...]:
    return tuple(Group(block_size=each, kernel_block_size=each) for each in block_sizes)


def _split(block_size: int, kernel: int) -> tuple[Group, ...]:
    return (Group(block_size=block_size, kernel_block_size=kernel),)


_STATE = (Group(block_size=WIDER, kernel_block_size=WIDER, slots=False),)
_WHOLE = (Group(block_size=16, kernel_block_size=16, sharded=False),)

_V1_WIRED: tuple[_Configuration, ...] = (
    (_plain(16), 1, 1, 1),
    (_plain(WIDE), 1, 1, 1),
    (_plain(16, WIDE), 1, 1, 1),
    ((*_plain(WIDER), *_STATE), 1, 1, 1),
    (_plain(16), 2, 1, 1),
    (_plain(WIDE), 2, 1, 16),
    (_split(WIDE, 16), 1, 1, 1),
    (_split(128, 64), 2, 1, 128),
)
_V1_CONTRACT: tuple[_Configuration, ...] = (
    (_plain(1), 1, 1, 1),
    (_plain(7, 1), 1, 1, 1),
    (_plain(16, WIDE), 1, 1, 1),
    (_plain(NARROW), 3, 1, 4),
    (_plain(16), 2, 1, 16),
    (_plain(16), 4, 2, 1),
    (_split(ODD, 176), 1, 1, 1),
    (_split(64, 16), 2, 1, 64),
)
_V2_WIRED: tuple[_Configuration, ...] = (
    (_plain(16), 1, 1, 1),
    (_plain(16, 32), 1, 1, 1),
    (_plain(WIDE, 16), 1, 1, 1),
    (_plain(16), 2, 1, 1),
    (_plain(64, 16), 2, 1, 16),
    ((*_plain(WIDER), *_STATE), 1, 1, 1),
    ((*_plain(16), *_WHOLE), 2, 1, 16),
)
_V2_CONTRACT: tuple[_Configuration, ...] = (
    (_plain(1), 1, 1, 1),
    (_plain(7, 1, WIDE), 1, 1, 1),
    (_plain(NARROW), 3, 1, 4),
    (_plain(WIDE, 16), 4, 1, 1),
    ((*_STATE, *_plain(16)), 1, 1, 1),
    ((*_WHOLE, *_plain(WIDE)), 2, 1, 16),
)
_CONFIGURATIONS = {
    ("wired", "v1"): _V1_WIRED,
    ("wired", "v2"): _V2_WIRED,
    ("contract", "v1"): _V1_CONTRACT,
    ("contract", "v2"): _V2_CONTRACT,
}
_SPARE = (0, 0, 1, 15, 1000, 1024, 1025)
_PADDED = (0, 0, 1, 3)
_DUMMIES: tuple[tuple[int, ...], ...] = ((), (), (), (1,), (0,), (3, 1))


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a step.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones have tables as the release sizes them and, in V2, pools that
            fit a device; contract ones any pool whose ids are int32.
    """
    contract = origin == "contract"
    v1 = draw(st.booleans())
    configurations = _CONFIGURATIONS[origin, "v1" if v1 else "v2"]
    groups, ranks, prefill_ranks, interleave = draw(st.sampled_from(configurations))
    made = draw(
        tables(
            groups=groups,
            ranks=ranks,
            interleave=interleave,
            far=v1 or contract,
            min_query=0 if contract else 1,
        )
    )
    dummies = draw(st.sampled_from(_DUMMIES)) if contract and not v1 else ()
    return Case(
        format_version=1,
        origin=origin,
        runner="v1" if v1 else "v2",
        tables=made,
        prefill_ranks=prefill_ranks,
        swaps=draw(_swaps(made)) if v1 else (),
        states=() if v1 else draw(states_of(made)),
        dummies=dummies[: made.rows - len(made.staying)],
        padded=draw(st.sampled_from(_PADDED)),
        spare=draw(st.sampled_from(_SPARE)),
    )


def _swaps(made: Tables) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    row = st.integers(0, len(made.staying) - 1)
    return st.lists(st.tuples(row, row), max_size=2).map(tuple)
