"""A small engine of the tree's own parts, for the block tables of Mamba groups.

Real: the worker's tables and their sizing (`fuzz.targets._mamba_rows`), and
`KVCacheManager` with its Mamba manager and block pool.
Ours: the order of steps, after `Scheduler.schedule` and `_mamba_block_aligned_split`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fuzz.targets._mamba_rows import VOCAB_SIZE, Kernels, V1Rows, V2Rows, accepted
from invariants.mamba_table_values import (
    Case,
    Decode,
    Engine,
    Hit,
    Served,
    ServedRequest,
    ServedStep,
)

if TYPE_CHECKING:
    import torch

STEPS_MAX = 48


class RowUnfit(Exception):
    """A request's blocks do not fit the row that the runner sized for them."""

    def __init__(self, error: Exception, *, blocks: int, columns: int) -> None:
        super().__init__(f"{blocks} blocks, {columns} columns: {error}")
        self.error = error
        self.blocks = blocks
        self.columns = columns


class AllocationFailed(Exception):
    """The KV-cache manager raised where it should give blocks, or None."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, kw_only=True)
class BatchStep:
    """One step of the worker, as the Mamba metadata builder would see it.

    Attributes:
        table: ``[rows, columns]`` int32 of the Mamba group, padding rows included.
        seq_lens: ``[rows]`` int32, 0 in padding rows.
        owned: ``[rows]`` blocks of the KV-cache manager, None for padding rows.
        used: ``[rows]`` leading window entries that the step reads or writes.
        fresh: Blocks held in this step that a finished request had owned.
        moves: Rows of requests before and after, where these differ: those of the
            step before, or which new ones were added to. V2 moves none.
    """

    number: int
    table: "torch.Tensor"
    seq_lens: "torch.Tensor"
    owned: tuple[tuple[int, ...] | None, ...]
    used: tuple[int, ...]
    fresh: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]


@dataclass(kw_only=True)
class _Request:
    """A request on its way: vLLM's own object, and what is left of its plan."""

    plan: ServedRequest
    request: Any
    token: int
    decodes: list[Decode]
    scheduled: int = 0
    decode: Decode | None = None
    hit: Hit | None = None
    received: tuple[int, ...] = ()


@dataclass(kw_only=True)
class MambaEngine:
    """The parts of the tree that a wired case runs; `steps` are those that ended."""

    case: Case
    engine: Engine
    manager: Any
    rows: V1Rows | V2Rows
    mamba_group: int
    max_scheduled_tokens: int
    waiting: list[_Request]
    running: list[_Request] = field(default_factory=list)
    owned_before: set[int] = field(default_factory=set)
    row_of: dict[str, int] = field(default_factory=dict)
    steps: list[ServedStep] = field(default_factory=list)


def batch_steps(engine: MambaEngine) -> Iterator[BatchStep]:
    """Serve an engine's requests; a batch per step that schedules any.

    Raises:
        AllocationFailed: When the KV-cache manager raises.
        RowUnfit: When a row cannot be written.
    """
    for number in range(STEPS_MAX):
        if not engine.waiting and not engine.running:
            return
        added, appended, preempted = _scheduled(engine, number)
        _update_rows(engine, added=added, appended=appended, preempted=preempted)
        if engine.running:
            yield _batch(engine, number)
        engine.steps.append(_update_requests(engine, number))


def started(case: Case, kernels: Kernels) -> MambaEngine:
    """The engine of a wired case before its first step.

    Args:
        case: With an engine.
        kernels: What runs the kernels of V2's tables.
    """
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import (
        get_request_block_hasher,
        init_none_hash,
        resolve_kv_cache_block_sizes,
    )

    engine = case.engine
    assert engine is not None
    config = _kv_cache_config(case, engine)
    vllm_config = _vllm_config(case, engine)
    scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(
        config, vllm_config
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(hash_block_size, sha256)
    caching = case.mode != "none"
    manager = KVCacheManager(
        **accepted(
            KVCacheManager.__init__,
            kv_cache_config=config,
            max_model_len=case.max_model_len,
            scheduler_block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            enable_caching=caching,
        )
    )
    return MambaEngine(
        case=case,
        engine=engine,
        manager=manager,
        rows=V1Rows(case, engine, config, vllm_config)
        if engine.runner == "v1"
        else V2Rows(case, engine, config, vllm_config, kernels=kernels),
        mamba_group=len(engine.attention_block_sizes),
        max_scheduled_tokens=engine.chunk_blocks * case.block_size,
        waiting=[
            _opened_request(number, plan, hasher if caching else None)
            for number, plan in enumerate(engine.requests)
        ],
    )


def _opened_request(number: int, plan: ServedRequest, hasher: Any) -> _Request:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    token = plan.family % VOCAB_SIZE
    request = Request(
        request_id=f"r{number}",
        # One token over and over: a hash covers all tokens before it as well.
        prompt_token_ids=[token] * plan.prompt_tokens,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
        pooling_params=None,
        block_hasher=hasher,
    )
    return _Request(plan=plan, request=request, token=token, decodes=list(plan.decodes))


def _vllm_config(case: Case, engine: Engine) -> SimpleNamespace:
    """What sizing reads of a `VllmConfig`, as a hybrid model's would say it."""
    attention = engine.attention_block_sizes
    cache_config = SimpleNamespace(
        block_size=attention[0] if attention else case.block_size,
        enable_prefix_caching=case.mode != "none",
        mamba_cache_mode=case.mode,
        hash_block_size=None,
        prefix_match_unit=None,
        use_replayssm=False,
    )
    drafts = case.num_speculative_blocks
    return SimpleNamespace(
        cache_config=cache_config,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=drafts)
        if drafts
        else None,
        num_speculative_tokens=drafts,
        kv_transfer_config=None,
        reasoning_config=None,
        model_config=SimpleNamespace(
            max_model_len=case.max_model_len, get_vocab_size=lambda: VOCAB_SIZE
        ),
    )


def _kv_cache_config(case: Case, engine: Engine) -> Any:
    """One group per attention block size, then the Mamba group."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
    )

    groups = [
        KVCacheGroupSpec(
            [f"attention.{number}"],
            FullAttentionSpec(
                block_size=size, num_kv_heads=1, head_size=8, dtype=torch.bfloat16
            ),
        )
        for number, size in enumerate(engine.attention_block_sizes)
    ]
    mamba = MambaSpec(
        block_size=case.block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=case.mode,
        num_speculative_blocks=case.num_speculative_blocks,
    )
    groups.append(KVCacheGroupSpec(["mamba.0"], mamba))
    return KVCacheConfig(
        num_blocks=engine.pool_blocks, kv_cache_tensors=[], kv_cache_groups=groups
    )


_BlocksGiven = list[tuple[_Request, Any]]


def _scheduled(
    engine: MambaEngine, number: int
) -> tuple[_BlocksGiven, _BlocksGiven, list[_Request]]:
    """One scheduling step: newly admitted, running with new blocks, preempted.

    Running requests come first; one that gets no blocks is preempted and waits again;
    then waiting ones are admitted while rows and blocks last.
    """
    if hasattr(engine.manager, "new_step_starts"):
        engine.manager.new_step_starts()
    appended: _BlocksGiven = []
    preempted: list[_Request] = []
    for served in list(engine.running):
        tokens = _tokens_to_schedule(engine, served, computed=0)
        blocks = _allocated(engine, served, tokens)
        if blocks is None:
            _preempt(engine, served)
            preempted.append(served)
            continue
        served.scheduled = tokens
        appended.append((served, blocks))
    if preempted:
        return [], appended, preempted
    return _admitted(engine, number), appended, preempted


def _admitted(engine: MambaEngine, number: int) -> _BlocksGiven:
    from vllm.v1.request import RequestStatus

    added: _BlocksGiven = []
    for served in [s for s in engine.waiting if s.plan.arrives <= number]:
        if len(engine.running) == engine.engine.max_num_reqs:
            break
        hit_blocks, hit_tokens = engine.manager.get_computed_blocks(served.request)[:2]
        tokens = _tokens_to_schedule(engine, served, computed=hit_tokens)
        blocks = _allocated(
            engine,
            served,
            tokens,
            num_new_computed_tokens=hit_tokens,
            new_computed_blocks=hit_blocks,
        )
        if blocks is None:
            break
        served.hit = Hit(
            tokens=hit_tokens,
            request_tokens=served.request.num_tokens,
            blocks=tuple(hit_blocks.get_block_ids()[engine.mamba_group]),
        )
        served.request.num_computed_tokens = hit_tokens
        served.request.status = RequestStatus.RUNNING
        served.scheduled = tokens
        engine.waiting.remove(served)
        engine.running.append(served)
        added.append((served, blocks))
    return added


def _allocated(engine: MambaEngine, served: _Request, tokens: int, **hit: Any) -> Any:
    """Blocks for a request's next tokens, None when the pool has too few."""
    try:
        blocks = engine.manager.allocate_slots(
            served.request,
            tokens,
            num_lookahead_tokens=engine.case.num_speculative_blocks,
            **hit,
        )
    except Exception as error:
        raise AllocationFailed(error) from error
    if blocks is not None:
        served.received = tuple(chain.from_iterable(blocks.get_block_ids()))
    return blocks


def _tokens_to_schedule(engine: MambaEngine, served: _Request, *, computed: int) -> int:
    """Tokens of a request's next step, and the decode that it takes from its plan.

    A prompt's chunks end at a block boundary, its last boundary included, so that the
    state there can be cached (`Scheduler._mamba_block_aligned_split`, 0.20.1).
    """
    request = served.request
    start = request.num_computed_tokens + computed
    served.decode = None
    if start < max(request.num_prompt_tokens, request.num_tokens - 1):
        end = min(request.num_tokens, start + engine.max_scheduled_tokens)
        if engine.case.mode == "align":
            size = engine.case.block_size
            last_boundary = request.num_tokens // size * size
            if end < last_boundary:
                end = end // size * size
            elif start < last_boundary < end:
                end = last_boundary
            if start % size:
                # After a hit inside of a block (from 0.28 on): end with that block.
                end = min(end, (start // size + 1) * size)
        return int(end - start)
    served.decode = served.decodes.pop(0) if served.decodes else None
    drafts = served.decode.drafts if served.decode else 0
    # A sequence ends one token below max_model_len (`Scheduler.schedule`, 0.20.1).
    room = engine.case.max_model_len - 1 - start
    return int(max(min(1 + drafts, room), 1))


def _preempt(engine: MambaEngine, served: _Request) -> None:
    """Give a request's blocks back and start it anew (`_preempt_request`, 0.20.1)."""
    from vllm.v1.request import RequestStatus

    engine.manager.free(served.request)
    served.request.status = RequestStatus.PREEMPTED
    served.request.num_computed_tokens = 0
    engine.running.remove(served)
    engine.waiting.insert(0, served)


def _update_rows(
    engine: MambaEngine,
    *,
    added: _BlocksGiven,
    appended: _BlocksGiven,
    preempted: list[_Request],
) -> None:
    """The worker's tables, in the order of `GPUModelRunner._update_states`."""
    rows = engine.rows
    for served in preempted:
        rows.remove(served.request.request_id)
    for served, blocks in appended:
        _write(engine, served, partial(_append, rows, served, blocks.get_block_ids()))
    for served, _ in added:
        ids = engine.manager.get_block_ids(served.request.request_id)
        _write(engine, served, partial(rows.add, served.request, ids))
        engine.row_of[served.request.request_id] = rows.row(served.request.request_id)
    rows.settle(
        {
            served.request.request_id: (
                served.request.num_computed_tokens,
                served.scheduled,
            )
            for served in engine.running
        }
    )


def _append(
    rows: V1Rows | V2Rows, served: _Request, ids: tuple[list[int], ...]
) -> None:
    rows.append(served.request.request_id, ids)


def _write(engine: MambaEngine, served: _Request, write: Callable[[], None]) -> None:
    """Write a request's row; V1's numpy and V2 itself refuse one that is too long.

    Any exception of the tree there is an observation, not only that refusal.
    """
    ids = engine.manager.get_block_ids(served.request.request_id)
    blocks, columns = len(ids[engine.mamba_group]), engine.rows.columns
    try:
        write()
    except Exception as error:
        raise RowUnfit(error, blocks=blocks, columns=columns) from error


def _batch(engine: MambaEngine, number: int) -> BatchStep:
    """Table and lengths as the runner hands them to its metadata builders."""
    import torch

    rows = len(engine.running)
    padded = min(rows + engine.engine.padding_rows, engine.engine.max_num_reqs)
    table = engine.rows.table(rows=rows, padded=padded)
    seq_lens = torch.zeros(padded, dtype=torch.int32)
    owned: list[tuple[int, ...] | None] = [None] * padded
    used = [0] * padded
    held: set[int] = set()
    for served in engine.running:
        row = engine.rows.row(served.request.request_id)
        seq_lens[row] = served.request.num_computed_tokens + served.scheduled
        ids = engine.manager.get_block_ids(served.request.request_id)
        owned[row] = tuple(ids[engine.mamba_group])
        used[row] = served.scheduled if served.decode else 1
        held.update(owned[row] or ())
    row_of = {
        served.request.request_id: engine.rows.row(served.request.request_id)
        for served in engine.running
    }
    moves = tuple(
        (engine.row_of[name], row)
        for name, row in row_of.items()
        if engine.row_of.get(name, row) != row and engine.engine.runner == "v1"
    )
    engine.row_of = row_of
    fresh = tuple(sorted(held & engine.owned_before))
    return BatchStep(
        number=number,
        table=table,
        seq_lens=seq_lens,
        owned=tuple(owned),
        used=tuple(used),
        fresh=fresh,
        moves=moves,
    )


def _update_requests(engine: MambaEngine, number: int) -> ServedStep:
    """What the scheduler does with the model's output: accept, reject, finish."""
    log = []
    copies = _copied_blocks(engine)
    for served in list(engine.running):
        request = served.request
        start = request.num_computed_tokens
        blocks = engine.manager.get_block_ids(request.request_id)[engine.mamba_group]
        drafts = served.scheduled - 1 if served.decode else 0
        accepted_drafts = min(served.decode.accepted, drafts) if served.decode else 0
        request.num_computed_tokens += served.scheduled - drafts + accepted_drafts
        log.append(
            Served(
                prompt=served.token,
                start=start,
                end=request.num_computed_tokens,
                scheduled=served.scheduled,
                decodes=served.decode is not None,
                blocks=tuple(blocks),
                received=served.received,
                hit=served.hit,
            )
        )
        served.hit = None
        if request.num_computed_tokens < request.num_prompt_tokens:
            continue
        output = 1 + accepted_drafts
        request.append_output_token_ids([served.token] * output)
        full = request.num_computed_tokens >= engine.case.max_model_len - 1
        if not served.decodes or full:
            _finish(engine, served)
    return ServedStep(number=number, served=tuple(log), copies=copies)


def _copied_blocks(engine: MambaEngine) -> tuple[tuple[int, int], ...]:
    """Blocks that the worker copies before its step, from 0.28 on.

    The scheduler keeps both ends from being reused until the step has run, which is
    at once here (`Scheduler._free_cow_retained_blocks`, 0.33.0).
    """
    if not hasattr(engine.manager, "take_kv_cache_block_copies"):
        return ()
    copies, retained = engine.manager.take_kv_cache_block_copies()
    engine.manager.block_pool.free_blocks(retained)
    return tuple((copy.src_block_id, copy.dst_block_id) for copy in copies)


def _finish(engine: MambaEngine, served: _Request) -> None:
    request_id = served.request.request_id
    for ids in engine.manager.get_block_ids(request_id):
        engine.owned_before.update(ids)
    engine.owned_before.discard(0)
    engine.manager.free(served.request)
    engine.rows.remove(request_id)
    engine.running.remove(served)
