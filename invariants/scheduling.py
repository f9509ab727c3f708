"""Plain values of one scheduling step: block tables of a pool, and who runs what.

They say what a scheduler hands to its workers, without vLLM's classes, so that a
target can build tensors from them and a reference model can be written over them.
Block id 0 is the null block, which no request owns.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

NULL_BLOCK = 0
# Asynchronous scheduling sends drafts to the worker before they exist: each is -1
# (vllm/v1/core/sched/async_scheduler.py, 0.20.1).
PLACEHOLDER_TOKEN = -1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=PLACEHOLDER_TOKEN, le=2**31 - 1)]
Row = tuple[BlockId, ...]

StepKind = Literal["new", "cached", "resumed"]


def columns_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` tokens: the quotient rounded up."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, kw_only=True)
class PrefixLayout:
    """Which blocks of one pool hold the tokens of each request, group by group.

    All KV-cache groups draw from one pool (``vllm/v1/core/kv_cache_coordinator.py``,
    0.20.1), so that an id has one owner over all groups, or is a shared prefix block:
    the same column of the same group in each of its owners.

    Attributes:
        pool_blocks: Ids are ``0 .. pool_blocks - 1``; 0 is the null block.
        block_sizes: ``[groups]`` tokens per block.
        num_tokens: ``[requests]`` tokens that have a slot.
        block_ids: ``[groups][requests][columns]``; column c holds the tokens from
            ``c * block_size`` on, or the null block where a group no longer needs them
            (sliding window, recurrent state): null columns lead a row.
        prefix_tokens: ``[requests]`` leading tokens whose blocks are shared with the
            other requests where it is not 0; a multiple of every block size.
        reused: Ids owned now that a finished request had owned: stale contents.
        freed: Ids free now that a finished request had owned.
        kept_columns: ``[groups]`` trailing columns that a group keeps of each row,
            0 for all of them; () when every group keeps all.
    """

    pool_blocks: Size
    block_sizes: tuple[Size, ...]
    num_tokens: tuple[Count, ...]
    block_ids: tuple[tuple[Row, ...], ...]
    prefix_tokens: tuple[Count, ...]
    reused: Row = ()
    freed: Row = ()
    kept_columns: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        requests = len(self.num_tokens)
        if len(self.block_ids) != len(self.block_sizes):
            raise ValueError(
                f"{len(self.block_ids)} groups of block tables for "
                f"{len(self.block_sizes)} block sizes; give one table per group"
            )
        if len(self.prefix_tokens) != requests:
            raise ValueError(
                f"{len(self.prefix_tokens)} prefix lengths for {requests} requests"
            )
        for group, (size, rows) in enumerate(
            zip(self.block_sizes, self.block_ids, strict=True)
        ):
            lengths = [len(row) for row in rows]
            expected = [columns_for(tokens, size) for tokens in self.num_tokens]
            if lengths != expected:
                raise ValueError(
                    f"group {group} has rows of {lengths} blocks; {self.num_tokens} "
                    f"tokens in blocks of {size} need {expected}"
                )
        self._check_nulls()
        owned = set(self.owned_ids())
        top = max([*owned, *self.freed, NULL_BLOCK])
        if top >= self.pool_blocks:
            raise ValueError(f"block id {top} in a pool of {self.pool_blocks} blocks")
        if not set(self.reused) <= owned:
            raise ValueError("reused blocks must be owned by a request")
        if owned & set(self.freed) or NULL_BLOCK in self.freed:
            raise ValueError("freed blocks must be neither owned nor the null block")

    def _check_nulls(self) -> None:
        if self.kept_columns and len(self.kept_columns) != len(self.block_sizes):
            raise ValueError(
                f"{len(self.kept_columns)} kept_columns for {len(self.block_sizes)} "
                "groups; give one per group, or () when every group keeps all"
            )
        for group, rows in enumerate(self.block_ids):
            for row in rows:
                nulls = self._nulls(group, len(row))
                if row[:nulls].count(NULL_BLOCK) != nulls or NULL_BLOCK in row[nulls:]:
                    raise ValueError(
                        f"a row of group {group} is {row}; its first {nulls} columns "
                        "must be the null block, and no others"
                    )

    def _nulls(self, group: int, columns: int) -> int:
        kept = self.kept_columns[group] if self.kept_columns else 0
        return max(columns - kept, 0) if kept else 0

    def owned_ids(self) -> Iterable[int]:
        """Ids in any row, the null block left out; shared ones several times."""
        for rows in self.block_ids:
            for row in rows:
                yield from (block for block in row if block != NULL_BLOCK)

    def null_columns(self, group: int, request: int) -> int:
        """Leading columns of a row that the group no longer needs."""
        return self._nulls(group, len(self.block_ids[group][request]))

    def forgotten_tokens(self, request: int) -> int:
        """Leading tokens of a request that some group no longer holds."""
        return max(
            self.null_columns(group, request) * size
            for group, size in enumerate(self.block_sizes)
        )


@dataclass(frozen=True, kw_only=True)
class RequestStep:
    """What one request does in a step (vllm/v1/core/sched/output.py, 0.20.1).

    Attributes:
        kind: ``new`` is scheduled for the first time, ``resumed`` again after a
            preemption (both come with their whole block table), ``cached`` goes on.
        num_prompt_tokens: Prompt length; a request decodes once it is computed.
        num_computed_tokens: Tokens computed before this step, prefix hits included.
        num_scheduled_tokens: Tokens of this step, drafts included.
        draft_token_ids: The last of the scheduled tokens, guessed: ids of the
            vocabulary, or `PLACEHOLDER_TOKEN` under asynchronous scheduling.
        new_block_ids: ``[groups][blocks]`` to append (``cached``) or to start with;
            None when a cached request needs none in any group.
    """

    kind: StepKind
    num_prompt_tokens: Count
    num_computed_tokens: Count
    num_scheduled_tokens: Count
    draft_token_ids: tuple[TokenId, ...]
    new_block_ids: tuple[Row, ...] | None

    @property
    def decodes(self) -> bool:
        """Whether the whole prompt had been computed before this step."""
        return self.num_computed_tokens >= self.num_prompt_tokens


@dataclass(frozen=True, kw_only=True)
class SchedulerOutput:
    """One step of a scheduler: every request of ``layout`` is scheduled.

    Attributes:
        layout: Block tables as they are after the step's allocations; request i has
            ``num_computed_tokens + num_scheduled_tokens`` tokens there.
        requests: ``[requests]``, same order as the layout's rows.
        num_common_prefix_blocks: ``[groups]`` leading columns that are the same in the
            rows of all requests, 0 in groups that do not keep every column (as
            ``get_num_common_prefix_blocks`` of ``single_type_kv_cache_manager.py``,
            0.20.1). One number per KV-cache group, whatever the speculative length.
        num_speculative_tokens: Drafts that a step may carry per request.
        vocab_size: Draft ids are below it.
        asynchronous: Whether drafts are placeholders.
    """

    layout: PrefixLayout
    requests: tuple[RequestStep, ...]
    num_common_prefix_blocks: tuple[Count, ...]
    num_speculative_tokens: Count
    vocab_size: Size
    asynchronous: bool

    def __post_init__(self) -> None:
        totals = tuple(
            step.num_computed_tokens + step.num_scheduled_tokens
            for step in self.requests
        )
        if totals != self.layout.num_tokens:
            raise ValueError(
                f"steps end at {totals} tokens, the layout holds "
                f"{self.layout.num_tokens}; each row must end where its step does"
            )
        if len(self.num_common_prefix_blocks) != len(self.layout.block_sizes):
            raise ValueError(
                f"{len(self.num_common_prefix_blocks)} common-prefix counts for "
                f"{len(self.layout.block_sizes)} KV-cache groups; give one per group"
            )

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(step.num_scheduled_tokens for step in self.requests)


def common_prefix_columns(rows: Iterable[Row]) -> int:
    """Leading columns that are the same block in every row, 0 without rows."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) != 1 or column[0] == NULL_BLOCK:
            break
        count += 1
    return count
