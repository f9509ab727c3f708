"""Steps whose block tables are gathered: groups of unequal widths, padded batches."""

from dataclasses import replace

from hypothesis import strategies as st

from invariants.gather_block_tables import Case
from invariants.model import Origin
from invariants.table_case import Group
from strategies.block_sizes import WIDE, WIDER
from strategies.table_rows import states_of, tables


def _group(block_size: int, reach: int = 0) -> Group:
    return Group(block_size=block_size, kernel_block_size=block_size, reach=reach)


# Groups as planning makes them of layers whose pages differ: only one of them reads all
# of a context, and no two windows are the same.
_WIRED: tuple[tuple[Group, ...], ...] = (
    (_group(16),),
    (_group(16), _group(32, reach=127)),
    (_group(64, reach=511), _group(16)),
    (_group(16), _group(16, reach=63)),
    (_group(16, reach=127), _group(32), _group(64, reach=511)),
    (_group(WIDE), _group(WIDE // 2, reach=1023)),
)
_CONTRACT: tuple[tuple[Group, ...], ...] = (
    (_group(1),),
    (_group(WIDE), _group(1)),
    (_group(16), _group(WIDE), _group(1, reach=7)),
    (_group(7, reach=3), _group(16)),
    (_group(WIDER), _group(WIDE)),
    (_group(2), _group(3), _group(5), _group(7)),
)


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a step.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones have groups that the release's own planning makes.
    """
    groups = draw(st.sampled_from(_WIRED if origin == "wired" else _CONTRACT))
    made = draw(tables(groups=groups))
    padded = draw(st.integers(0, 3))
    batch = len(made.staying)
    if draw(st.booleans()):
        # Padded to the last row, where nothing lies behind.
        made = replace(made, rows=max(len(made.requests), batch + padded))
        padded = made.rows - batch
    return Case(
        format_version=1,
        origin=origin,
        tables=made,
        states=draw(states_of(made)),
        padded=min(padded, made.rows - batch),
    )
