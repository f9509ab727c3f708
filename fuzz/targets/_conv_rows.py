"""The tensors of a convolution's launch, and what must come of each row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from fuzz.targets._sparse_pool import SparsePool
from invariants.causal_conv import Mismatch
from invariants.causal_conv_case import Case, Row
from invariants.convolution import convolved, next_window


@dataclass(frozen=True, kw_only=True)
class Step:
    """The tensors of a step beside the windows.

    Attributes:
        inputs: ``[tokens, channels]``, whose rows may hold more than that.
        given: The same numbers, which no launch overwrites.
        starts: ``[rows + 1]`` int32 first tokens.
        blocks: ``[rows]`` int32, the first column of a table with one for each draft.
        accepted: ``[rows]`` int32.
        started: ``[rows]`` bool.
    """

    inputs: torch.Tensor
    given: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    starts: torch.Tensor
    blocks: torch.Tensor
    accepted: torch.Tensor
    started: torch.Tensor

    def read_only(self) -> Iterator[torch.Tensor]:
        """What no launch may store to, but for inputs, which some overwrite."""
        for each in (self.weight, self.bias, self.starts, self.blocks, self.accepted):
            if each is not None:
                yield each
        yield self.started


def make_step(case: Case) -> Step:
    """Contents from the case's seed."""
    source = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source).to(dtype)

    tokens = sum(row.tokens for row in case.rows)
    whole = torch.full((tokens, case.channels + case.row_rest), torch.nan, dtype=dtype)
    whole[:, : case.channels] = normal(tokens, case.channels)
    counts = torch.tensor([0, *(row.tokens for row in case.rows)])
    columns = 1 + case.drafts if case.form == "verify" else 1
    table = torch.zeros((len(case.rows), columns), dtype=torch.int32)
    table[:, 0] = torch.tensor([row.block for row in case.rows])
    return Step(
        inputs=whole[:, : case.channels],
        given=whole[:, : case.channels].clone(),
        weight=normal(case.channels, case.width),
        bias=normal(case.channels) if case.bias else None,
        starts=counts.cumsum(0).to(torch.int32),
        blocks=table[:, 0],
        accepted=torch.tensor([r.accepted for r in case.rows], dtype=torch.int32),
        started=torch.tensor([row.started for row in case.rows]),
    )


def windows_of(case: Case, pool: SparsePool) -> torch.Tensor:
    """``[blocks, channels, columns]`` of all pages, as the layer views them."""
    dtype = getattr(torch, case.dtype)
    count = case.pool_blocks * case.page
    numbers = pool.bytes[: count * dtype.itemsize].view(dtype)
    inner = (1, case.channels) if case.order == "tokens" else (case.window, 1)
    shape = (case.pool_blocks, case.channels, case.window)
    return torch.as_strided(numbers, shape, (case.page, *inner))


def fill_windows(case: Case, pool: SparsePool, windows: torch.Tensor) -> torch.Tensor:
    """Open the pages of rows that run, and draw what their windows hold.

    Returns:
        ``[rows that run, channels, columns]``.
    """
    item = windows.element_size()
    used = case.page * item
    pool.open((block * used, (block + 1) * used) for block in case.blocks)
    source = torch.Generator().manual_seed(case.seed + 1)
    shape = (len(case.blocks), case.channels, case.window)
    before = torch.randn(shape, generator=source).to(windows.dtype)
    for block, each in zip(case.blocks, before, strict=True):
        windows[block] = each
    return before


def compared(
    case: Case,
    step: Step,
    before: torch.Tensor,
    output: torch.Tensor,
    windows: torch.Tensor,
) -> tuple[Mismatch, ...]:
    """What differs from the reference, the first row of outputs and of windows.

    Args:
        case: The launch.
        step: Its tensors.
        before: As `fill_windows` gives it.
        output: ``[tokens, channels]``.
        windows: As the launch left them.
    """
    found: list[Mismatch] = []
    window_of = dict(zip(case.blocks, before, strict=True))
    first = 0
    for number, row in enumerate(case.rows):
        own = step.given[first : first + row.tokens]
        got = output[first : first + row.tokens]
        first += row.tokens
        if not row.runs:
            # Prompts have an output of their own, in which padding is left open.
            if case.form != "prefill":
                found += _worst("output", number, got, own.double())
            continue
        if row.accepted == 0:
            # Nobody reads what a discarded row gives.
            continue
        window = window_of[row.block].T
        history = _history(case, row, window)
        want = convolved(
            history=history,
            inputs=own,
            weight=step.weight,
            bias=step.bias,
            silu=case.silu,
            dtype=case.dtype,
        )
        found += _worst("output", number, got, want.output, want.allowed)
        kept = case.width - 1
        if case.form == "verify":
            kept += row.tokens - 1
        after = next_window(window=window, inputs=torch.cat([history, own]), kept=kept)
        found += _worst("window", number, windows[row.block].T, after.double())
    first_of = {each.tensor: each for each in reversed(found)}
    return tuple(first_of.values())


def _history(case: Case, row: Row, window: torch.Tensor) -> torch.Tensor:
    """``[width - 1, channels]`` inputs that a row goes on from."""
    last = case.width - 1
    if case.form == "prefill" and not row.started:
        return torch.zeros_like(window[:last])
    first = row.accepted - 1 if case.form == "verify" else 0
    return window[first : first + last]


def _worst(
    tensor: Literal["output", "window"],
    row: int,
    got: torch.Tensor,
    want: torch.Tensor,
    allowed: torch.Tensor | float = 0.0,
) -> Iterator[Mismatch]:
    """The element furthest beyond what is allowed, if any is; NaN is."""
    excess = torch.nan_to_num((got.double() - want).abs() - allowed, nan=torch.inf)
    wrong = int((excess > 0).sum())
    if not wrong:
        return
    at = int(excess.argmax())
    _, channels = excess.shape
    yield Mismatch(
        tensor=tensor,
        elements=wrong,
        row=row,
        at=at // channels,
        channel=at % channels,
        got=f"{float(got.double().flatten()[at]):.6g}",
        expected=f"{float(want.flatten()[at]):.6g}",
    )
