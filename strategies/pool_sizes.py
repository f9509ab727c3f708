"""Pool sizes in blocks.

Small ones, primes, 2^k and its neighbours, and those at which an offset of 32 bits into
the pool starts to wrap.
"""

from hypothesis import strategies as st

SMALL_BLOCKS = 12
PRIMES = (13, 31, 61, 127, 251, 509, 1021, 2053, 4093, 8191)
# Offsets wrap in int32 from 2^31 on; a cast to uint32 only moves that to 2^32.
OFFSET_LIMITS = (2**31, 2**32)


def pool_sizes(
    *,
    min_blocks: int = 2,
    max_blocks: int = 4097,
    page_stride: int | None = None,
) -> st.SearchStrategy[int]:
    """Draw how many blocks a pool has, the null block included.

    Args:
        min_blocks: Smallest pool; the simplest value.
        max_blocks: Largest pool.
        page_stride: Elements or bytes from one block to the next. When given, pools
            whose last block starts or ends just below and just beyond 2^31 and 2^32
            of that unit are drawn as well, as far as ``max_blocks`` allows.

    Raises:
        ValueError: When the bounds hold no size, or the stride is not positive.
    """
    if not 1 <= min_blocks <= max_blocks:
        raise ValueError(
            f"pool_sizes wants 1 <= min_blocks <= max_blocks, got {min_blocks} and "
            f"{max_blocks}"
        )
    if page_stride is not None and page_stride < 1:
        raise ValueError(f"pool_sizes wants page_stride >= 1, got {page_stride}")
    sizes = {min_blocks + extra for extra in range(SMALL_BLOCKS)}
    sizes.update(PRIMES)
    for power in range(1, max_blocks.bit_length() + 1):
        sizes.update((2**power - 1, 2**power, 2**power + 1))
    if page_stride is not None:
        for limit in OFFSET_LIMITS:
            # The last block of a pool of n starts at (n - 1) * page_stride.
            at_limit = limit // page_stride
            sizes.update(range(at_limit - 1, at_limit + 4))
    sizes.update((min_blocks, max_blocks))
    inside = sorted(size for size in sizes if min_blocks <= size <= max_blocks)
    return st.sampled_from(inside)
