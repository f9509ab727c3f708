"""Which deed of the worker left a row of its block table wrong.

Rows are appended to as requests get blocks, taken along where a request fills a hole
of the batch, and exchanged where decodes are put first.
"""

from collections.abc import Sequence

from invariants.mamba_table_values import Case, WindowCall
from invariants.scheduling import NULL_BLOCK

FILLING_SITE = "MultiGroupBlockTable.append_row"
V2_FILLING_SITE = "BlockTables.append_block_ids"
MOVING_SITE = "MultiGroupBlockTable.move_row"
EXCHANGING_SITE = "MultiGroupBlockTable.swap_row"


def blamed(
    case: Case, calls: tuple[WindowCall, ...], wrong: Sequence[tuple[int, int]]
) -> str:
    """The deed to blame for wrong rows: for those that were wrong first.

    What fills rows wrongly does so to all; so a row that never moved acquits what moves
    them. Where only rows that had moved are wrong, their last move is to blame, also
    when that shows later: a lost length misplaces blocks that are appended afterwards.

    Args:
        case: Of any runner; V2 moves no rows.
        calls: All calls of the case, in the order of its steps.
        wrong: Call and row of each, by index; at least one.
    """
    filling = FILLING_SITE
    if case.engine is not None and case.engine.runner == "v2":
        filling = V2_FILLING_SITE
    first = min(call for call, _ in wrong)
    moves = _last_moves(calls)[first]
    sites = {moves.get(row, filling) for call, row in wrong if call == first}
    return filling if filling in sites else min(sites)


def _last_moves(calls: tuple[WindowCall, ...]) -> list[dict[int, str]]:
    """By call, the last move of each row whose request has moved since it came."""
    known: list[dict[int, str]] = []
    last: dict[int, str] = {}
    before: WindowCall | None = None
    for call in calls:
        left = {old for old, _ in call.moves}
        last = {
            row: deed
            for row, deed in last.items()
            if row not in left and before is not None and _same(before, call, row)
        }
        # Holes are filled from the end, so that only an exchange takes a request to a
        # later row, or to one that another has left; it may take others along.
        exchanged = any(new in left or new > old for old, new in call.moves)
        deed = EXCHANGING_SITE if exchanged else MOVING_SITE
        last |= {new: deed for _, new in call.moves}
        known.append(last)
        before = call
    return known


def _same(before: WindowCall, call: WindowCall, row: int) -> bool:
    """Whether a row still is that of the same request, by the blocks that it holds."""
    rows = [each.owned[row : row + 1] for each in (before, call)]
    earlier, now = ({*(held[0] or ())} if held else set[int]() for held in rows)
    return bool((earlier & now) - {NULL_BLOCK})
