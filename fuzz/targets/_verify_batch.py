"""The tensors of a verify launch beside the cache: queries, tables, guarded output."""

from dataclasses import dataclass

import torch

from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import Case

# Rows of the output's buffer beside those of the batch, which nobody may write.
_GUARD_ROWS = 2
# Kernels read a whole tile of the table, up to 127 tokens past a request's last; 0.33.0
# widens its tables for that (get_block_table_width of v1/worker/block_table.py).
_TABLE_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of a launch beside the cache.

    Attributes:
        guarded: ``[tokens + guards, heads, head_size]``, whose middle is the output.
        sinks: ``[heads]`` of the query's dtype, None without.
    """

    query: torch.Tensor
    guarded: torch.Tensor
    cu_query: torch.Tensor
    used: torch.Tensor
    table: torch.Tensor
    sinks: torch.Tensor | None

    @property
    def out(self) -> torch.Tensor:
        """``[tokens, heads, head_size]``, NaN until written."""
        return self.guarded[_GUARD_ROWS:-_GUARD_ROWS]

    def inputs(self) -> dict[str, torch.Tensor]:
        """What a launch must leave as it is."""
        sinks = {} if self.sinks is None else {"the sinks": self.sinks}
        return sinks | {
            "the query": self.query,
            "cu_seqlens_q": self.cu_query,
            "seqused_k": self.used,
            "the block table": self.table,
            "rows before the output": self.guarded[:_GUARD_ROWS],
            "rows after the output": self.guarded[-_GUARD_ROWS:],
        }


def make_batch(case: Case, query: torch.Tensor) -> Batch:
    """Tensors of a case's launch.

    Args:
        case: The launch.
        query: ``[tokens, heads, head_size]``, which is copied; padding follows.
    """
    padding = query.new_full((case.padding_tokens, *query.shape[1:]), torch.nan)
    query = torch.cat([query, padding])
    tokens, heads, size = query.shape
    if case.fused_query:
        # Query, keys and values of a token lie side by side after the projection.
        fused = torch.full(
            (tokens, heads + 2 * case.shape.kv_heads, size),
            torch.nan,
            dtype=query.dtype,
        )
        fused[:, :heads] = query
        query = fused[:, :heads]
    shape = (tokens + 2 * _GUARD_ROWS, heads, size)
    none = (0,) * case.padding_rows
    starts = torch.tensor([0, *case.query_lens, *none]).cumsum(0)
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(case.seed))
    return Batch(
        query=query,
        guarded=torch.full(shape, torch.nan, dtype=query.dtype),
        cu_query=starts.to(torch.int32),
        used=torch.tensor((*case.layout.num_tokens, *none), dtype=torch.int32),
        table=_make_table(case),
        sinks=(3 * sinks).to(query.dtype) if case.sinks else None,
    )


def _make_table(case: Case) -> torch.Tensor:
    """Block table; columns past a row's last hold a block that the batch does not own.

    Tables are persistent buffers, so that such columns keep what an earlier request
    had there (`BlockTable` of v1/worker/block_table.py, 0.20.1).
    """
    rows = case.layout.block_ids[0]
    columns = max(len(row) for row in rows) + -(-_TABLE_TOKENS // case.block_size)
    owned = set(case.layout.owned_ids())
    candidates = (*case.layout.freed, case.layout.pool_blocks - 1, 1)
    stale = next((block for block in candidates if block not in owned), NULL_BLOCK)
    height = len(rows) + case.padding_rows
    table = torch.full((height, columns), stale, dtype=torch.int32)
    for request, row in enumerate(rows):
        table[request, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return table


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """NaN-proof view for comparisons."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])
