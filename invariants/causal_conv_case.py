"""Launches of the causal convolution: rows of a batch, and the windows they go on from.

A state is a window of a request's last inputs, one column for each token: those that
the next output needs, and with drafts one more for each, so that rejected drafts can be
left again (`causal_conv1d_update` of mamba/ops/causal_conv1d.py, 0.20.1).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.model import Origin
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import ITEM_BYTES, POOL_BYTES_MAX, Dtype

# Prompts (`causal_conv1d_fn`); one token each; one and up to k drafts each.
Form = Literal["prefill", "decode", "verify"]
KERNELS: dict[Form, str] = {
    "prefill": "_causal_conv1d_fwd_kernel",
    "decode": "_causal_conv1d_update_kernel",
    "verify": "_causal_conv1d_update_kernel",
}
# Where the columns of a window lie: channels of a token side by side, or columns of a
# channel (`is_conv_state_dim_first`).
WindowOrder = Literal["tokens", "channels"]
# Tokens of a program of prompts, and channels of a program.
CHUNK_TOKENS = 8
TILE_CHANNELS = 256
COMPARED_OF = 4
_TOKENS_MAX = 512


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request of the batch.

    Attributes:
        tokens: Of this step; 0 for padding of a graph.
        block: Whose page holds the window; `NULL_BLOCK` for padding.
        started: Whether a prompt goes on from a window.
        accepted: Tokens of the last step that stay, 1 without drafts; 0 is what a
            discarded row of an asynchronous step has (contract only).
    """

    tokens: Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)]
    block: Annotated[int, msgspec.Meta(ge=0, le=2**24)]
    started: bool
    accepted: Annotated[int, msgspec.Meta(ge=0, le=65)]

    @property
    def runs(self) -> bool:
        """Whether the launch does anything for this row."""
        return self.tokens > 0 and self.block != NULL_BLOCK


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch.

    Attributes:
        width: Inputs that an output depends on, its own included.
        drafts: At most, of each row; windows have a column more for each.
        page_rest: Elements of a page after the window: the recurrent state, padding.
        row_rest: Elements of the projection's rows after the channels.
        seed: Of the contents; of four, one makes a case whose floats are compared.
    """

    format_version: Literal[1]
    origin: Origin
    form: Form
    dtype: Dtype
    width: Annotated[int, msgspec.Meta(ge=2, le=4)]
    channels: Annotated[int, msgspec.Meta(ge=1, le=2**14)]
    drafts: Annotated[int, msgspec.Meta(ge=0, le=64)]
    order: WindowOrder
    page_rest: Annotated[int, msgspec.Meta(ge=0, le=2**26)]
    row_rest: Annotated[int, msgspec.Meta(ge=0, le=2**16)]
    pool_blocks: Annotated[int, msgspec.Meta(ge=2, le=2**24)]
    rows: tuple[Row, ...]
    bias: bool
    silu: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        blocks = self.blocks
        if not blocks or len(self.rows) > 64:
            raise ValueError(
                f"{len(self.rows)} rows, {len(blocks)} of which run; give 1 to 64, one "
                "of which has tokens and a block"
            )
        named = [row.block for row in self.rows if row.block != NULL_BLOCK]
        if len(set(named)) < len(named) or max(named) >= self.pool_blocks:
            raise ValueError(
                f"windows in blocks {sorted(named)} of {self.pool_blocks}; each row "
                "has a block of its own"
            )
        for row in self.rows:
            if self.form == "decode" and row.tokens != 1:
                raise ValueError(f"a decode of {row.tokens} tokens")
            if self.form == "verify" and row.tokens > 1 + self.drafts:
                raise ValueError(f"{row.tokens} tokens with {self.drafts} drafts")
            last = 1 + (self.drafts if self.form == "verify" else 0)
            first = 0 if self.form == "verify" and self.origin == "contract" else 1
            if not first <= row.accepted <= last:
                raise ValueError(
                    f"{row.accepted} accepted tokens, not {first} to {last}"
                )
        if self.pool_bytes > POOL_BYTES_MAX:
            raise ValueError(
                f"a pool of {self.pool_bytes} bytes; at most {POOL_BYTES_MAX}"
            )

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks of rows that run, sorted."""
        return tuple(sorted(row.block for row in self.rows if row.runs))

    @property
    def window(self) -> int:
        """Columns of a state."""
        return self.width - 1 + self.drafts

    @property
    def page(self) -> int:
        """Elements from block to block."""
        return self.window * self.channels + self.page_rest

    @property
    def pool_bytes(self) -> int:
        """Size of all blocks."""
        return self.pool_blocks * self.page * ITEM_BYTES[self.dtype]

    @property
    def compared(self) -> bool:
        """Whether floats are computed too, and outputs and windows are compared."""
        return self.seed % COMPARED_OF == COMPARED_OF - 1
