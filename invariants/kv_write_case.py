"""Launches that write a step's keys and values into a paged cache.

The pool is one that an attention launch would read; its geometry is that launch's. Only
slots are said here, and which of the wrappers' layouts the views have.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants import verify_case
from invariants.kernel_shapes import Heads, HeadSize, KernelShape
from invariants.model import Origin
from invariants.scheduling import NULL_BLOCK, PrefixLayout
from invariants.verify_case import CacheDtype, Dtype, Geometry, Order, Page

# A token that is not written: padding, or one whose slot another rank has.
PADDING_SLOT = -1
SLOTS_MAX = 4096
# heads_first: a head's keys go [part of 16 bytes, slot, element], its values
# [element, slot]; diffkv: key and value of a head, of two sizes, lie side by side.
Form = Literal["flash", "heads_first", "per_token_head", "diffkv"]
KERNELS: dict[Form, str] = {
    "flash": "reshape_and_cache_kernel_flash",
    "heads_first": "reshape_and_cache_kernel_flash",
    "per_token_head": "_reshape_cache_per_token_head",
    "diffkv": "reshape_and_cache_kernel_flash_diffkv",
}
PART_BYTES = 16
COMPARED_OF = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch.

    Attributes:
        form: Which wrapper, and which layout of its cache.
        dtype: Of the step's keys and values.
        value_size: Elements of a head's value; differs from those of its key in diffkv
            only.
        slots: ``[tokens]``, block times block size plus offset, -1 for a token that is
            not written; no two tokens have one slot, nobody writes the null block.
        page: Only for contract cases; of wired ones the release decides.
        order, layers, padding: Of the pool, as for attention (`verify_case.Case`).
        fused: Whether keys and values are views of a fused QKV projection.
        seed: Of the contents; of four, one makes a case whose cache is compared.
    """

    format_version: Literal[1]
    origin: Origin
    form: Form
    dtype: Dtype
    cache: CacheDtype
    kv_heads: Heads
    head_size: HeadSize
    value_size: HeadSize
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**14)]
    pool_blocks: Annotated[int, msgspec.Meta(ge=2, le=2**24)]
    slots: tuple[Annotated[int, msgspec.Meta(ge=PADDING_SLOT, le=2**45)], ...]
    page: Page
    order: Order
    layers: Annotated[int, msgspec.Meta(ge=1, le=64)]
    padding: Annotated[int, msgspec.Meta(ge=0, le=2**26, multiple_of=16)]
    fused: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        written = self.written
        if not 1 <= len(self.slots) <= SLOTS_MAX or not written:
            raise ValueError(
                f"{len(self.slots)} tokens, {len(written)} of them written; give 1 to "
                f"{SLOTS_MAX}, one of them written"
            )
        if len(set(written)) < len(written):
            raise ValueError("two tokens have one slot")
        if NULL_BLOCK in self.blocks or self.top_block >= self.pool_blocks:
            raise ValueError(
                f"slots in blocks {self.blocks[0]} to {self.top_block} of "
                f"{self.pool_blocks}; block 0 is the null block"
            )
        if self.cache.endswith("_per_token_head") != (self.form == "per_token_head"):
            raise ValueError(f"a cache of {self.cache} in the form {self.form}")
        if self.value_size != self.head_size and self.form != "diffkv":
            raise ValueError("keys and values of two sizes need the form diffkv")
        if (self.head_size + self.value_size) % 2:
            raise ValueError("key and value have an odd number of elements together")
        if self.form == "diffkv" and self.page != "interleaved":
            raise ValueError("diffkv has pages whose keys and values are interleaved")
        if self.form == "heads_first":
            self._check_parts()
        if self.form in {"heads_first", "diffkv"} and self.origin == "wired":
            raise ValueError(f"no wired cases of {self.form}")
        # Judges sizes.
        geometry(self)

    def _check_parts(self) -> None:
        if (self.page, self.order) != ("apart", "heads"):
            raise ValueError("heads_first has keys and values apart, head by head")
        if self.head_size % self.part:
            raise ValueError(
                f"a head of {self.head_size} elements in parts of {self.part}"
            )

    @property
    def written(self) -> tuple[int, ...]:
        """Slots of tokens that have one, in order."""
        return tuple(slot for slot in self.slots if slot != PADDING_SLOT)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks that are written to, sorted."""
        return tuple(sorted({slot // self.block_size for slot in self.written}))

    @property
    def top_block(self) -> int:
        """Largest block id that is written to."""
        return self.blocks[-1]

    @property
    def compared(self) -> bool:
        """Whether floats are computed too, and the cache is compared."""
        return self.seed % COMPARED_OF == COMPARED_OF - 1

    @property
    def part(self) -> int:
        """Elements of a part of a key, heads first."""
        size = verify_case.ITEM_BYTES[self.dtype] if self.cache == "auto" else 1
        return PART_BYTES // size

    @property
    def reading(self) -> verify_case.Case:
        """An attention launch on the same pool, which says where everything lies."""
        return verify_case.Case(
            format_version=1,
            origin=self.origin,
            kernel="unified_2d",
            dtype=self.dtype,
            cache=self.cache,
            shape=KernelShape(
                kv_heads=self.kv_heads,
                queries_per_kv=1,
                head_size=(self.head_size + self.value_size) // 2,
            ),
            layout=PrefixLayout(
                pool_blocks=self.pool_blocks,
                block_sizes=(self.block_size,),
                num_tokens=(1,),
                block_ids=(((self.top_block,),),),
                prefix_tokens=(0,),
            ),
            query_lens=(1,),
            window=0,
            page=self.page,
            order=self.order,
            layers=self.layers,
            padding=self.padding,
            fused_query=False,
            seed=0,
        )


def geometry(case: Case) -> Geometry:
    """Strides and offsets of a contract case's pool, as attention would read it.

    In the form heads_first those of a head's plane hold, not those of its slots; in the
    form diffkv those of the keys, which the values follow.
    """
    return verify_case.geometry(case.reading)
