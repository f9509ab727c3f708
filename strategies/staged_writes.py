"""Batches of staged writes: on tensors of any size, and as requests come and go."""

from hypothesis import strategies as st

from invariants.model import Origin
from invariants.staged_writes_case import (
    ITEM_BYTES,
    TILE,
    Batch,
    Case,
    Dtype,
    Ending,
    Form,
    Write,
)
from invariants.verify_case import INT32_LIMIT

_LENGTHS = (1, 2, 0, 33, TILE - 1, TILE, TILE + 1, 2 * TILE, 2 * TILE + 1)
_SMALL_COLUMNS = (1, 16, 100, TILE, TILE + 1, 3 * TILE)
# Of rows that lie beyond 2^31 elements or bytes: a few thousand to millions long.
_LARGE_COLUMNS = (4_097, 40_960, 262_144, 10_485_760)
_ROWS = (1, 2, 8, 300)
_BATCHES_MAX = 3
_WRITES_MAX = 5
_ENDINGS: tuple[Ending, ...] = ("applied", "applied", "applied twice", "cleared")
# Most requests and longest one; the last four at 1024 and 256 requests (defaults of
# large and other GPUs, vllm/engine/arg_utils.py) of models with 1,010,000 (Qwen3-VL,
# YaRN) and 10,485,760 tokens (Llama 4 Scout).
_SERVED = ((4, 64), (8, 4_096), (64, 40_960))
_LONG = ((1024, 1_010_000), (256, 1_010_000), (256, 10_485_760), (1024, 10_485_760))


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw some batches.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones are requests.
    """
    return draw(_served() if origin == "wired" else _tensors())


@st.composite
def _tensors(draw: st.DrawFn) -> Case:
    form: Form = draw(st.sampled_from(("tensor", "tensors")))
    columns: tuple[int, ...]
    dtypes: tuple[Dtype, ...] = ("int32", "int64", "float32")
    dtype = draw(st.sampled_from(dtypes)) if form == "tensor" else "int32"
    if draw(st.sampled_from((False, False, True))):
        columns = (draw(st.sampled_from(_LARGE_COLUMNS)),)
        past = INT32_LIMIT // draw(st.sampled_from((1, ITEM_BYTES[dtype])))
        rows = past // columns[0] + draw(st.sampled_from((2, 1, 3, 1000)))
    else:
        rows = draw(st.sampled_from(_ROWS))
        columns = (draw(st.sampled_from((*_SMALL_COLUMNS, 0))),)
    if form == "tensors":
        others = st.sampled_from(_SMALL_COLUMNS)
        columns = (*columns, *draw(st.lists(others, min_size=1, max_size=2)))
    far = draw(st.booleans())
    batches: list[Batch] = []
    for _ in range(draw(st.integers(1, _BATCHES_MAX))):
        writes = draw(
            st.lists(_write(rows=rows, columns=columns, far=far), max_size=_WRITES_MAX)
        )
        batches.append(
            Batch(
                finished=(),
                writes=_apart(writes),
                ending=draw(st.sampled_from(_ENDINGS)),
            )
        )
    return Case(
        format_version=1,
        origin="contract",
        form=form,
        dtype=dtype,
        rows=rows,
        columns=columns,
        batches=tuple(batches),
        pinned=form == "tensor" and draw(st.booleans()),
        first=draw(st.integers(1, 2**16)),
    )


@st.composite
def _write(draw: st.DrawFn, *, rows: int, columns: tuple[int, ...], far: bool) -> Write:
    """A write near the first columns of its row, or `far`: near the last ones."""
    tensor = draw(st.integers(0, len(columns) - 1))
    width = max(columns[tensor], 1)
    # Rows near both ends; ranks from the last one, so that the smallest is the last.
    row = max(rows - 1 - draw(st.integers(0, 3)), 0)
    if draw(st.sampled_from((False, False, False, True))):
        row = rows - 1 - row
    length = min(draw(st.sampled_from(_LENGTHS)), width)
    room = min(width - length, 2 * TILE)
    start = draw(st.sampled_from((0, 0, 1, 17, TILE)))
    start = min(start, room)
    if far:
        start = width - length - start
    return Write(tensor=tensor, row=row, start=start, length=length)


def _apart(writes: list[Write]) -> tuple[Write, ...]:
    """Those that overlap none before them."""
    taken: list[Write] = []
    for write in writes:
        same = [
            each
            for each in taken
            if (each.tensor, each.row) == (write.tensor, write.row)
        ]
        if all(write.start >= each.end or each.start >= write.end for each in same):
            taken.append(write)
    return tuple(taken)


@st.composite
def _served(draw: st.DrawFn) -> Case:
    form: Form = draw(st.sampled_from(("requests", "positions")))
    large = draw(st.sampled_from((False, True)))
    requests, longest = draw(st.sampled_from(_LONG if large else _SERVED))
    numbers = min(requests, 6)
    batches: list[Batch] = []
    for _ in range(draw(st.integers(1, _BATCHES_MAX))):
        added = draw(st.lists(st.integers(0, numbers - 1), unique=True, max_size=4))
        others = [each for each in range(numbers) if each not in added]
        finished = (
            draw(st.lists(st.sampled_from(others), unique=True, max_size=3))
            if others
            else []
        )
        writes = tuple(
            draw(_request(number=number, longest=longest)) for number in added
        )
        ending = draw(st.sampled_from(_ENDINGS[1:3]))
        batches.append(Batch(finished=tuple(finished), writes=writes, ending=ending))
    return Case(
        format_version=1,
        origin="wired",
        form=form,
        dtype="int32",
        rows=requests,
        columns=(longest,),
        batches=tuple(batches),
        pinned=draw(st.sampled_from((True, True, False))),
        first=draw(st.integers(1, 2**16)),
    )


@st.composite
def _request(draw: st.DrawFn, *, number: int, longest: int) -> Write:
    length = min(max(draw(st.sampled_from((*_LENGTHS, longest))), 1), longest)
    length = min(length, 4 * TILE)
    computed = draw(st.sampled_from((0, length - 1, length // 2)))
    return Write(tensor=0, row=number, start=computed, length=length)
