"""Correct launches of the kernels that copy Mamba states between blocks.

The states of one layer share pages, as in the aligned mode: a page holds the
convolution's window first, the recurrent state behind it, and padding up to the page of
the attention layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from fuzz.targets._cuda_view import as_cuda
from fuzz.targets._real_launch import (
    RealLaunch,
    blocks_at_top,
    imported,
    ints,
    owned,
    read_only,
    table_of,
    virtual,
)
from invariants.memory.regions import Memory

_COPIES = ("vllm.v1.worker.mamba_utils",)
_CPU = torch.device("cpu")

# Qwen3-Next: 32 value and 16 key heads of 128. With three drafts both states are as
# large as the attention page of a block of 560 tokens.
CONV_WIDTH, CONV_DIM = 4, 2 * 16 * 128 + 32 * 128
STATE = (32, 128, 128)
BLOCK_SIZE = 560
PAGE = BLOCK_SIZE * 2 * 2 * 256
# 4,000 pages of 573,440 elements lie on both sides of 2**31 bytes and elements.
POOL_BLOCKS = 4_000

# One of eight ranks has an eighth of each state, and half the attention page, for it
# has a KV head of its own: the rest of its page is padding.
_RANKS, _RANK_PAGE, _RANK_POOL_BLOCKS = 8, PAGE // 2, 8_000


@dataclass(frozen=True, eq=False)
class Layer:
    """States of one layer: ``[blocks, window, channels]`` and ``[blocks, *STATE]``."""

    conv: torch.Tensor
    temporal: torch.Tensor


def layer_states(*, drafts: int) -> Layer:
    """Both states of one layer as views of one pool of pages."""
    return _states(drafts, POOL_BLOCKS, PAGE, ranks=1)


def _states(drafts: int, blocks: int, page: int, *, ranks: int) -> Layer:
    pool = virtual((blocks, page), torch.bfloat16)
    window, channels = CONV_WIDTH - 1 + drafts, CONV_DIM // ranks
    heads, *sizes = STATE
    start = window * channels
    end = start + heads // ranks * sizes[0] * sizes[1]
    return Layer(
        conv=pool[:, :start].view(blocks, window, channels),
        temporal=pool[:, start:end].view(blocks, heads // ranks, *sizes),
    )


def _spec(drafts: int) -> Any:
    interface = imported("vllm.v1.kv_cache_interface")
    return interface.MambaSpec(
        block_size=BLOCK_SIZE,
        shapes=(
            (CONV_WIDTH - 1 + drafts, CONV_DIM // _RANKS),
            (STATE[0] // _RANKS, *STATE[1:]),
        ),
        dtypes=(torch.bfloat16, torch.bfloat16),
        mamba_cache_mode="align",
        num_speculative_blocks=drafts,
    )


@dataclass(frozen=True, eq=False)
class _Model:
    """Two Mamba groups of two layers each, and the tables of a batch."""

    config: Any
    context: dict[str, Any]
    copies: Any
    layers: dict[str, Layer]
    rows: list[list[list[int]]]
    tables: list[torch.Tensor]


def _model(*, requests: int, columns: int, drafts: int) -> _Model:
    copy = imported("vllm.model_executor.layers.mamba.mamba_utils")
    functions = (copy.get_conv_copy_spec, copy.get_temporal_copy_spec)
    spec = _spec(drafts)
    names = [[f"{group}.{layer}" for layer in "ab"] for group in "01"]
    config = SimpleNamespace(
        kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=spec, layer_names=each) for each in names
        ]
    )
    layers = {
        name: _states(drafts, _RANK_POOL_BLOCKS, _RANK_PAGE, ranks=_RANKS)
        for each in names
        for name in each
    }
    context = {
        name: SimpleNamespace(kv_cache=[layer.conv, layer.temporal])
        for name, layer in layers.items()
    }
    # The groups' blocks are different ones of the same pool's ids.
    taken = blocks_at_top(
        [columns * BLOCK_SIZE] * 2 * requests,
        block_size=BLOCK_SIZE,
        pool_blocks=_RANK_POOL_BLOCKS,
    )
    rows = [taken[:requests], taken[requests:]]
    tables = [table_of(each, columns=columns + 3) for each in rows]
    return _Model(config, context, functions, layers, rows, tables)


@dataclass(frozen=True)
class _Copy:
    """Columns of a request's row that its states are copied between.

    The window slides within the running block; each draft has a recurrent state of its
    own, in a block of its own.
    """

    request: int
    running: int
    accepted: int
    saved: int


def _own(memory: Memory, model: _Model, copies: Sequence[_Copy]) -> None:
    """The blocks that copies read from and write to, of each group's states."""
    for name, layer in model.layers.items():
        rows = model.rows[int(name[0])]
        saved = {rows[each.request][each.saved] for each in copies}
        windows = {rows[each.request][each.running] for each in copies}
        states = {rows[each.request][each.running + each.accepted] for each in copies}
        owned(memory, layer.conv, readable=windows, writable=saved)
        owned(memory, layer.temporal, readable=states, writable=saved)
        memory.table(layer.conv, name=f"window of {name}")
        memory.table(layer.temporal, name=f"state of {name}")


def _copied(memory: Memory, *, bias: int) -> None:
    """V1: block 1 of every request goes to block 2, some accepted tokens on."""
    module = imported(*_COPIES)
    requests, drafts = 3, 3
    model = _model(requests=requests, columns=3 + drafts, drafts=drafts)
    _own(memory, model, [_Copy(each, 1, bias, 5) for each in range(requests)])
    copies = model.copies
    if hasattr(module, "get_mamba_group_ids"):
        copies = {model.config.kv_cache_groups[0].kv_cache_spec.mamba_type: copies}
    buffers = module.MambaCopyBuffers.create(requests, model.config, copies, _buffer)
    for request in range(requests):
        state = SimpleNamespace(block_ids=[group[request] for group in model.rows])
        module.collect_mamba_copy_meta(
            buffers, model.config, copies, [0, 1], 1, 5, bias, state, model.context
        )
    module.do_mamba_copy_block(buffers)


def _buffer(*size: int, dtype: torch.dtype) -> Any:
    made = imported("vllm.v1.utils").CpuGpuBuffer
    return made(*size, dtype=dtype, device=_CPU, pin_memory=False)


def _context(memory: Memory, model: _Model, requests: int) -> Any:
    """0.33.0's pointer tables, over the states and block tables of the model."""
    module = imported(*_COPIES)
    copies = {model.config.kv_cache_groups[0].kv_cache_spec.mamba_type: model.copies}
    context = module.MambaSpecDecodeGPUContext.create(
        requests + 1, model.config, copies, _CPU, _buffer
    )
    context.initialize_from_forward_context(
        model.config, model.context, copies, model.tables
    )
    for at, table in enumerate(model.tables):
        memory.table(table, name=f"block table of group {at}")
        read_only(memory, table)
    return context


# Per request: computed before, scheduled, drafts among these, accepted, running column.
_STEPS = (
    (600, 4, 3, 2, 1),  # no boundary is reached: nothing to save
    (1118, 4, 3, 3, 2),  # 1120 is passed with one draft
    (556, 4, 3, 4, 0),  # 560 is reached exactly: the window slides within its block
    (1119, 4, 3, 1, 2),  # 1120 is reached without a draft
)


def _saved(order: Sequence[int]) -> Iterator[_Copy]:
    """What the requests of `_STEPS` that reach a boundary save."""
    for state, step in zip(order, _STEPS, strict=True):
        computed, scheduled, drafts, accepted, column = step
        running = computed + scheduled - drafts
        aligned = (running + accepted - 1) // BLOCK_SIZE * BLOCK_SIZE
        if aligned >= running:
            bias = aligned - running
            yield _Copy(state, column, bias, aligned // BLOCK_SIZE - 1)


def _postprocessed(memory: Memory, *, mapped: bool) -> None:
    """Saves the aligned state of requests whose accepted tokens passed a boundary."""
    requests, drafts = len(_STEPS), 3
    model = _model(
        requests=requests + (2 if mapped else 0), columns=4 + drafts, drafts=drafts
    )
    order = [5, 0, 3, 2] if mapped else list(range(requests))
    _own(memory, model, list(_saved(order)))
    context = _context(memory, model, len(model.rows[0]))
    columns = [ints(each) for each in zip(*_STEPS, strict=True)]
    if not mapped:
        computed, scheduled, draft, accept, running = columns
        read_only(memory, *columns)
        context.run_fused_postprocess(
            requests, accept, running, scheduled, computed, draft
        )
        return
    spread = [
        torch.full((len(model.rows[0]) + 1,), -1, dtype=torch.int32) for _ in columns
    ]
    for whole, part in zip(spread, columns, strict=True):
        whole[order] = part
    computed, scheduled, draft, accept, running = spread
    after = computed + scheduled - draft + accept - 1
    # A row of the captured graph that is no request.
    mapping = ints([*order, -1])
    read_only(memory, running, after, mapping)
    context.run_fused_postprocess_align(len(mapping), accept, running, after, mapping)


def _precopied(memory: Memory, *, mapped: bool) -> None:
    """V2: advance the running columns, then bring states into the new blocks."""
    module = imported(*_COPIES)
    requests, drafts = 4, 3
    model = _model(requests=requests + 2, columns=4 + drafts, drafts=drafts)
    order = [5, 0, 3, 2] if mapped else list(range(requests))
    slots = requests + 3
    # Fresh; stays in its block; crosses into the next one; the same with a bias.
    before, computed = (-1, 0, 0, 1), (0, 20, 560, 1118)
    accept, queries = (1, 1, 1, 3), (560, 4, 4, 4)
    after = [
        -(-(done + query) // BLOCK_SIZE) - 1
        for done, query in zip(computed, queries, strict=True)
    ]
    copies = [
        _Copy(state, start, drafted - 1, end)
        for state, start, drafted, end in zip(order, before, accept, after, strict=True)
        if start not in (-1, end)
    ]
    _own(memory, model, copies)
    context = _context(memory, model, len(model.rows[0]))

    def spread(values: Sequence[int], filled: int) -> torch.Tensor:
        whole = torch.full((slots,), filled, dtype=torch.int32)
        whole[order] = ints(values)
        return whole

    columns = spread(before, -1)
    source = torch.full((slots,), -1, dtype=torch.int32)
    bias = torch.zeros(slots, dtype=torch.int32)
    mapping = ints(order)
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    counts, done = spread(accept, 1), spread(computed, 0)
    read_only(memory, mapping, starts, done)
    block = 32
    module.preprocess_mamba_align_fused_kernel[(1,)](
        mapping,
        columns,
        done,
        starts,
        counts,
        source,
        bias,
        requests,
        BLOCK_SIZE=block,
        MAMBA_BLOCK_SIZE=BLOCK_SIZE,
    )
    if columns[order].tolist() != after or source[order].tolist() != list(before):
        raise AssertionError(f"columns {columns.tolist()} from {source.tolist()}")
    context.run_fused_precopy(
        requests, columns, source, bias, mapping if mapped else None
    )


def _indices(memory: Memory) -> None:
    """Windows of all groups in one launch; the last row has no tokens yet."""
    requests, drafts = 5, 3
    model = _model(requests=requests, columns=8 + drafts, drafts=drafts)
    context = _context(memory, model, requests)
    lengths = [1, BLOCK_SIZE, BLOCK_SIZE + 1, 8 * BLOCK_SIZE, 0]
    seq_lens = as_cuda(ints(lengths))
    read_only(memory, seq_lens)
    found = context.compute_aligned_state_indices(seq_lens, requests)
    for rows, made in zip(model.rows, found.tolist(), strict=True):
        for row, length, window in zip(rows, lengths, made, strict=True):
            first = max(length - 1, 0) // BLOCK_SIZE
            if window != row[first : first + drafts + 1]:
                raise AssertionError(f"{window} is no window of {row} at {first}")


def _fused(name: str, kernels: Sequence[str], run: Any) -> RealLaunch:
    return RealLaunch(
        name=name,
        kernels=tuple((each,) for each in kernels),
        module=_COPIES,
        run=run,
        needs="MambaSpecDecodeGPUContext",
    )


_POST = ("postprocess_mamba_fused_kernel",)
_PRE = ("preprocess_mamba_align_fused_kernel", "precopy_mamba_align_fused_kernel")
LAUNCHES: Sequence[RealLaunch] = (
    *(
        RealLaunch(
            name=f"copied states, {bias} accepted drafts",
            kernels=(("batch_memcpy_kernel",),),
            module=_COPIES,
            run=partial(_copied, bias=bias),
        )
        for bias in (0, 2)
    ),
    _fused("saved states", _POST, partial(_postprocessed, mapped=False)),
    _fused("saved states, V2", _POST, partial(_postprocessed, mapped=True)),
    _fused("states brought along", _PRE, partial(_precopied, mapped=False)),
    _fused("states brought along, V2", _PRE, partial(_precopied, mapped=True)),
    _fused(
        "windows of all groups",
        ("get_aligned_state_indices_multi_group_kernel",),
        _indices,
    ),
)
