"""The workers' block tables, V1's and V2's: made, filled and judged as runners do it.

Widths come from the release's own code for wired cases (`KVCacheSpec`s and the classes
themselves), else they are as narrow as the longest request allows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fuzz.targets._real_launch import accepted, imported, ints
from fuzz.targets._real_tables import plain_buffers
from invariants.memory.launches import Log, checked_launches
from invariants.memory.regions import Memory, Ownership
from invariants.model import Origin
from invariants.table_case import Group, Tables, rows_of, split

V1 = "vllm.v1.worker.block_table"
V2 = "vllm.v1.worker.gpu.block_table"
_CP = "vllm.v1.worker.cp_utils"
_SPECS = "vllm.v1.kv_cache_interface"
CPU = torch.device("cpu")


class NotInThisReleaseError(Exception):
    """The release has no such tables; says what it lacks."""


def widths(tables: Tables, *, origin: Origin) -> list[int]:
    """Columns of the manager's blocks in each group's table."""
    if origin == "contract":
        return [max(1, tables.count(tables.longest, each)) for each in tables.groups]
    return [_sized(tables, each) for each in tables.groups]


def _sized(tables: Tables, group: Group) -> int:
    """As the release's runner sizes it; up to 0.20.1 the classes do."""
    interface, module = imported(_SPECS), imported(V1)
    spec = interface.FullAttentionSpec(
        block_size=group.block_size,
        num_kv_heads=1,
        head_size=16,
        dtype=torch.bfloat16,
        **accepted(interface.FullAttentionSpec, dcp_sharded=group.sharded),
    )
    if not hasattr(spec, "max_num_blocks_per_req"):
        return max(1, tables.count(tables.longest, group))
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=tables.ranks)
    )
    width: int = spec.max_num_blocks_per_req(config, tables.longest)
    if hasattr(module, "get_block_table_width"):
        aligned = module.get_block_table_width
        # Up to 0.28 it counts the kernels' blocks.
        given = accepted(
            aligned,
            kernel_block_size=group.block_size,
            token_alignment=getattr(spec, "block_table_token_alignment", 128),
        )
        width = aligned(width, group.block_size, **given)
    return width


@contextmanager
def _ranks(tables: Tables, prefill_ranks: int) -> Iterator[None]:
    """The process groups that tables look for their ranks in."""
    decode_ranks = tables.ranks // prefill_ranks
    prefill_rank, decode_rank = divmod(tables.rank, decode_ranks)

    def group(size: int, rank: int) -> Callable[[], Any]:
        return lambda: SimpleNamespace(world_size=size, rank_in_group=rank)

    module = imported(V1)
    with (
        mock.patch.object(module, "get_dcp_group", group(decode_ranks, decode_rank)),
        mock.patch.object(module, "get_pcp_group", group(prefill_ranks, prefill_rank)),
    ):
        yield


def v1_tables(
    tables: Tables, *, prefill_ranks: int, tokens: int, origin: Origin
) -> Any:
    """V1's `MultiGroupBlockTable`, empty.

    Raises:
        NotInThisReleaseError: The release splits no blocks, shares out no tokens of
            prefills or has no groups without slots in these tables.
    """
    module = imported(V1)
    multi = module.MultiGroupBlockTable
    takes = accepted(
        multi.__init__,
        max_num_reqs=tables.rows,
        max_model_len=tables.longest,
        max_num_batched_tokens=tokens,
        pin_memory=False,
        device=CPU,
        block_sizes=[each.block_size for each in tables.groups],
        kernel_block_sizes=[each.kernel_block_size for each in tables.groups],
        max_num_blocks=widths(tables, origin=origin),
        cp_kv_cache_interleave_size=tables.interleave,
    )
    old = "kernel_block_sizes" in takes
    splits = any(split(each) > 1 for each in tables.groups)
    _needed(old or not splits, "this release's V1 tables split no blocks")
    _needed(old or prefill_ranks == 1, "these tables know of no prefill ranks")
    _needed(_all_sharded(tables), "V1 shares out every group")
    if hasattr(module, "SlotMappingMode"):
        modes = module.SlotMappingMode
        takes["slot_mapping_modes"] = [
            modes.TOKEN_TO_KV_SLOT if each.slots else modes.NONE
            for each in tables.groups
        ]
    with _ranks(tables, prefill_ranks):
        return multi(**takes)


def v2_tables(tables: Tables, *, tokens: int, origin: Origin) -> Any:
    """V2's `BlockTables`, empty; to be used within `plain_buffers`.

    Raises:
        NotInThisReleaseError: The release has no groups without slots, or shares out
            all groups.
    """
    module = imported(V2)
    init = module.BlockTables.__init__
    takes = accepted(
        init,
        block_sizes=[each.block_size for each in tables.groups],
        max_num_reqs=tables.rows,
        max_num_batched_tokens=tokens,
        max_model_len=tables.longest,
        max_num_blocks_per_group=widths(tables, origin=origin),
        kernel_block_sizes=[each.block_size for each in tables.groups],
        device=CPU,
        cp_size=tables.ranks,
        cp_rank=tables.rank,
        cp_interleave=tables.interleave,
        slot_mapping_enabled=[each.slots for each in tables.groups],
        dcp_sharded=[each.sharded for each in tables.groups],
        sliding_window_reach=[each.reach for each in tables.groups],
    )
    new = "dcp_sharded" in takes
    slots = all(each.slots for each in tables.groups)
    _needed(new or slots, "all groups of this release's V2 have slots")
    _needed(new or _all_sharded(tables), "this release's V2 shares out every group")
    return module.BlockTables(**takes)


def _needed(met: bool, reason: str) -> None:  # noqa: FBT001 - a condition
    if not met:
        raise NotInThisReleaseError(reason)


def _all_sharded(tables: Tables) -> bool:
    return tables.ranks == 1 or all(each.sharded for each in tables.groups)


class V2Filled:
    """V2's tables with the step's requests in their state rows.

    Attributes:
        tables: The real `BlockTables`.
        logs: Of the launches that wrote the rows.
    """

    def __init__(
        self, tables: Tables, states: Sequence[int], *, tokens: int, origin: Origin
    ) -> None:
        with plain_buffers():
            self.tables = v2_tables(tables, tokens=tokens, origin=origin)
            self.logs = tuple(self._filled(tables, states))

    @property
    def rows(self) -> list[torch.Tensor]:
        """Each group's state rows, ``[rows, columns]`` int32."""
        return [each.gpu for each in self.tables.block_tables]

    def known(
        self, *, writable: Sequence[int] = (), readable: Sequence[int] = ()
    ) -> Memory:
        """What is known of the state rows; all but the writable ones are read-only."""
        memory = Memory()
        for each in self.rows:
            memory.own(each, Ownership.of(each, readable=readable, writable=writable))
            if not writable:
                memory.read_only(each)
            memory.table(each, name="block table")
        return memory

    def _filled(self, tables: Tables, states: Sequence[int]) -> Iterator[Log]:
        """Former requests, then those of the step: first blocks, then the others."""
        rows = rows_of(tables)
        leaving = [at for at, each in enumerate(tables.requests) if each.leaves]
        # Those that leave had the same rows, and others where they were more.
        others = [row for row in range(tables.rows) if row not in states]
        rank = dict(zip(leaving, [*states, *others], strict=False))
        rank |= dict(zip(tables.staying, states, strict=True))
        for which in (leaving, tables.staying):
            for joins in (True, False):
                for at in which:
                    ids = parts(tables, rows, at, joins=joins)
                    if joins or any(ids):
                        self.tables.append_block_ids(rank[at], ids, overwrite=joins)
                memory = self.known(writable=[rank[at] for at in which])
                with checked_launches(memory) as log:
                    self.tables.apply_staged_writes()
                yield log


def parts(
    tables: Tables,
    rows: tuple[tuple[tuple[int, ...], ...], ...],
    at: int,
    *,
    joins: bool,
) -> tuple[list[int], ...]:
    """Blocks of each group that a request brings when it joins, or gets later."""
    request = tables.requests[at]
    found = []
    for group, made in zip(tables.groups, rows, strict=True):
        first = tables.count(request.first, group)
        found.append(list(made[at][:first] if joins else made[at][first:]))
    return tuple(found)


def starts(queries: Sequence[int]) -> torch.Tensor:
    """``[queries + 1]`` int32: where each row's tokens begin; the last is their sum."""
    total, found = 0, [0]
    for each in queries:
        total += each
        found.append(total)
    return ints(found)
