"""Launches of the causal convolution: rows at the top of pools of any size.

Sizes that are compiled in come from a short list, as each new combination of them costs
as much as a hundred launches.
"""

from dataclasses import replace

from hypothesis import strategies as st

from invariants.causal_conv_case import CHUNK_TOKENS, Case, Form, Row, WindowOrder
from invariants.model import Origin
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import INT32_LIMIT, ITEM_BYTES, Dtype

# Form, dtype, width, channels, drafts, order, rest of the page and of the projection's
# rows, bias, SiLU. The first channels are of Qwen3-Next on eight ranks.
_Configuration = tuple[Form, Dtype, int, int, int, WindowOrder, int, int, bool, bool]
_WIRED: tuple[_Configuration, ...] = (
    ("prefill", "bfloat16", 4, 1024, 0, "tokens", 65_536, 512, False, True),
    ("prefill", "float16", 4, 24, 3, "tokens", 40, 8, False, True),
    ("prefill", "bfloat16", 4, 300, 2, "channels", 9_000, 20, True, True),
    ("decode", "bfloat16", 4, 1024, 0, "tokens", 65_536, 0, False, True),
    ("decode", "bfloat16", 4, 20, 2, "tokens", 12, 0, True, True),
    ("verify", "bfloat16", 4, 1024, 3, "tokens", 65_536, 0, False, True),
    ("verify", "float16", 4, 40, 1, "channels", 0, 0, False, True),
    ("verify", "bfloat16", 4, 257, 7, "tokens", 5_000, 0, True, True),
)
_CONTRACT: tuple[_Configuration, ...] = (
    ("prefill", "float32", 2, 16, 0, "tokens", 0, 0, True, False),
    ("prefill", "bfloat16", 3, 512, 1, "tokens", 33_000, 16, False, True),
    ("decode", "float32", 2, 16, 0, "channels", 8, 0, False, False),
    ("decode", "float16", 3, 260, 1, "tokens", 70_000, 12, True, True),
    ("verify", "float32", 2, 16, 2, "tokens", 16, 0, True, False),
    ("verify", "bfloat16", 3, 264, 4, "channels", 66_000, 0, False, True),
)
_ROWS_MAX = 5
# Blocks of the rows, counted from the pool's end.
_RANKS_MAX = 7
# Around the edges of windows and chunks.
_PROMPTS = (1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 2, 3, 7, 16, 17, 0, 25)
_SMALL_POOL = 24
_BEYOND = (2, 1, 0, 13, 1000)
# Padding comes after the rows that run, as graphs have it.
_PADDING = (0, 0, 0, 1, 3)


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a launch.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones are called as the GDN layer calls them.
    """
    wired = origin == "wired"
    form, dtype, width, channels, drafts, order, page_rest, row_rest, bias, silu = draw(
        st.sampled_from(_WIRED if wired else _CONTRACT)
    )
    count = draw(st.integers(1, _ROWS_MAX))
    ranks = draw(
        st.lists(
            st.integers(0, _RANKS_MAX), min_size=count, max_size=count, unique=True
        )
    )
    rows = [
        _row(draw, form, drafts=drafts, block=_SMALL_POOL - 1 - rank, wired=wired)
        for rank in ranks
    ]
    if not any(row.runs for row in rows):
        rows[0] = replace(rows[0], tokens=1)
    if form != "prefill":
        none = Row(
            tokens=int(form == "decode"), block=NULL_BLOCK, started=False, accepted=1
        )
        rows += [none] * draw(st.sampled_from(_PADDING))
    small = Case(
        format_version=1,
        origin=origin,
        form=form,
        dtype=dtype,
        width=width,
        channels=channels,
        drafts=drafts,
        order=order,
        page_rest=page_rest,
        row_rest=row_rest,
        pool_blocks=_SMALL_POOL,
        rows=tuple(rows),
        bias=bias,
        silu=silu,
        seed=draw(st.integers(0, 255)),
    )
    boundary = draw(st.sampled_from(("small", "elements", "bytes", "unsigned")))
    if boundary == "small":
        return small
    return _lifted(small, boundary, draw(st.sampled_from(_BEYOND)))


def _row(draw: st.DrawFn, form: Form, *, drafts: int, block: int, wired: bool) -> Row:
    if form == "prefill":
        return Row(
            tokens=draw(st.sampled_from(_PROMPTS)),
            block=block,
            started=draw(st.booleans()),
            accepted=1,
        )
    if form == "decode":
        return Row(tokens=1, block=block, started=True, accepted=1)
    least = draw(st.sampled_from((1,) if wired else (1, 1, 1, 0)))
    return Row(
        tokens=draw(st.integers(1, 1 + drafts)),
        block=block,
        started=True,
        accepted=least and draw(st.integers(1, 1 + drafts)),
    )


def _lifted(case: Case, boundary: str, beyond: int) -> Case:
    """The same launch at the end of a pool whose last block passes a boundary."""
    limit = {
        "elements": INT32_LIMIT,
        "bytes": INT32_LIMIT // ITEM_BYTES[case.dtype],
        "unsigned": 2 * INT32_LIMIT,
    }[boundary]
    blocks = min(-(-limit // case.page) + 1 + beyond, 2**24)
    shift = max(blocks - case.pool_blocks, 0)
    return replace(
        case,
        pool_blocks=case.pool_blocks + shift,
        rows=tuple(
            replace(row, block=row.block + shift) if row.block != NULL_BLOCK else row
            for row in case.rows
        ),
    )
