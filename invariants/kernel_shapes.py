"""The shape of an attention layer as its kernels see it: heads, groups, head size."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

Heads = Annotated[int, msgspec.Meta(ge=1, le=128)]
HeadSize = Annotated[int, msgspec.Meta(ge=1, le=1024)]


@dataclass(frozen=True, kw_only=True)
class KernelShape:
    """Grouped-query attention of one layer on one rank.

    Attributes:
        kv_heads: Heads of keys and values.
        queries_per_kv: Query heads that share one KV head.
        head_size: Elements of a head.
    """

    kv_heads: Heads
    queries_per_kv: Heads
    head_size: HeadSize

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.queries_per_kv
