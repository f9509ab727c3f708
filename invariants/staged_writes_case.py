"""Rows of tensors that the host writes in batches, and what they hold afterwards.

A batch is staged write by write and then applied at once, or cleared. Contents count
upwards from a number of the write's own, so that an element that landed one place off,
in another row or from another batch is another number.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.model import Origin

# Elements that a program of `_apply_write_kernel` copies at a time, or a pass of its
# loop (vllm/v1/worker/gpu/buffer_utils.py of 0.20.1 and 0.33.0).
TILE = 1024
# What stands in elements before anything is staged for them.
UNWRITTEN = -7
BYTES_MAX = 2**44
# Channels of the positions of a model with M-RoPE.
DIMS = 3

# tensor: one `StagedWriteTensor`; tensors: some, applied at once where a release can;
# requests: `RequestState`; positions: `RopeState`, whose request has a row per channel.
Form = Literal["tensor", "tensors", "requests", "positions"]
Dtype = Literal["int32", "int64", "float32"]
Ending = Literal["applied", "applied twice", "cleared"]
ITEM_BYTES: dict[Dtype, int] = {"int32": 4, "int64": 8, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Write:
    """One call of `stage_write`, or one request that is added.

    Attributes:
        tensor: Which of the case's tensors.
        row: Of the tensor; of wired cases the request's number, whose row the release
            chooses.
        start: First column; of a wired request, how many of its tokens are computed.
        length: Elements; 0 is staged too, and writes nothing.
    """

    tensor: Annotated[int, msgspec.Meta(ge=0, lt=4)]
    row: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    start: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    length: Annotated[int, msgspec.Meta(ge=0, le=4 * TILE)]

    @property
    def end(self) -> int:
        """Past the last column."""
        return self.start + self.length


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Writes that are staged one after the other, and what becomes of them.

    Attributes:
        finished: Requests that end before, by number; () in contract cases.
    """

    finished: tuple[Annotated[int, msgspec.Meta(ge=0, lt=64)], ...]
    writes: tuple[Write, ...]
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some batches in a row, on the same tensors.

    Attributes:
        rows: Of each tensor; of wired cases the most requests that are served.
        columns: Of each tensor, 0 for one of a single axis; of wired cases the longest
            request.
        pinned: Whether the tensor lies in the host's memory, which the GPU reaches.
        first: The first write's content begins here.
    """

    format_version: Literal[1]
    origin: Origin
    form: Form
    dtype: Dtype
    rows: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    columns: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...]
    batches: tuple[Batch, ...]
    pinned: bool
    first: Annotated[int, msgspec.Meta(ge=1, le=2**16)]

    def __post_init__(self) -> None:
        if not self.batches or not self.columns:
            raise ValueError("a case needs a batch and a tensor")
        if (self.origin == "wired") != (self.form in {"requests", "positions"}):
            raise ValueError(f"{self.origin} cases of the form {self.form}")
        if self.form != "tensors" and len(self.columns) != 1:
            raise ValueError(f"{len(self.columns)} tensors in the form {self.form}")
        if self.dtype != "int32" and self.form != "tensor":
            raise ValueError(f"{self.form} of {self.dtype}; block ids are int32")
        sizes = sum(max(each, 1) for each in self.columns)
        if self.rows * sizes * ITEM_BYTES[self.dtype] > BYTES_MAX:
            raise ValueError(f"tensors of more than {BYTES_MAX} bytes")
        for batch in self.batches:
            if self.origin == "wired":
                self._check_requests(batch)
            else:
                self._check_writes(batch)

    def _check_requests(self, batch: Batch) -> None:
        numbers = [write.row for write in batch.writes]
        if len(set(numbers)) < len(numbers) or set(numbers) & set(batch.finished):
            raise ValueError(f"requests {numbers} are not added once each")
        if max((*numbers, *batch.finished), default=0) >= self.rows:
            raise ValueError(f"more than {self.rows} requests")
        for write in batch.writes:
            if not write.start <= write.length or not 0 < write.length <= self.width:
                raise ValueError(
                    f"{write.start} of {write.length} tokens are computed; a request "
                    f"has 1 to {self.width}"
                )

    def _check_writes(self, batch: Batch) -> None:
        if batch.finished:
            raise ValueError("requests end in wired cases only")
        taken: list[Write] = []
        for write in batch.writes:
            if write.tensor >= len(self.columns) or write.row >= self.rows:
                raise ValueError(f"no row {write.row} of tensor {write.tensor}")
            if write.end > max(self.columns[write.tensor], 1):
                raise ValueError(f"columns to {write.end} of {self.columns}")
            for other in taken:
                same = (other.tensor, other.row) == (write.tensor, write.row)
                if same and write.start < other.end and other.start < write.end:
                    # No caller stages an element twice before it applies, and the
                    # programs of one launch have no order.
                    raise ValueError(f"two writes of a batch overlap in {write.row}")
            taken.append(write)

    @property
    def width(self) -> int:
        """Columns of the first tensor, 1 for one of a single axis."""
        return max(self.columns[0], 1)

    def content(self, batch: int, write: int) -> list[int]:
        """What a write puts into its row."""
        staged = [len(each.writes) for each in self.batches[:batch]]
        length = self.batches[batch].writes[write].length
        first = self.first + (sum(staged) + write) * 4 * TILE
        return list(range(first, first + length))


def written(row: list[int], start: int, content: list[int]) -> list[int]:
    """A row after a write: it has the content from `start` on, the rest is kept."""
    return row[:start] + content + row[start + len(content) :]
