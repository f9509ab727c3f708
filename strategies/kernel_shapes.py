"""Head counts and head sizes of attention layers, and the sizes just beside a power."""

from hypothesis import strategies as st

from invariants.kernel_shapes import KernelShape

# One rank's KV heads, the query heads that share one (3, 5, 6, 7 and 12 are those of
# deployed models that leave a tile's rows unused, 32 is more than a tile), head sizes.
KV_HEADS = (1, 2, 3, 4, 8, 16)
QUERIES_PER_KV = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
HEAD_SIZES = (16, 24, 32, 48, 64, 72, 80, 96, 112, 120, 128, 192, 256, 512)


def kernel_shapes(
    *,
    max_kv_heads: int = 8,
    max_queries_per_kv: int = 32,
    min_head_size: int = 16,
    max_head_size: int = 256,
) -> st.SearchStrategy[KernelShape]:
    """Draw the heads of one layer; one head of the smallest size is the simplest.

    Args:
        max_kv_heads: KV heads, at most.
        max_queries_per_kv: Query heads of a KV head, at most.
        min_head_size: Elements of a head, at least.
        max_head_size: The same, at most.

    Raises:
        ValueError: When the bounds hold no known shape.
    """
    kv_heads = [count for count in KV_HEADS if count <= max_kv_heads]
    groups = [count for count in QUERIES_PER_KV if count <= max_queries_per_kv]
    sizes = [size for size in HEAD_SIZES if min_head_size <= size <= max_head_size]
    if not (kv_heads and groups and sizes):
        raise ValueError(
            f"kernel_shapes holds no shape of at most {max_kv_heads} KV heads, "
            f"{max_queries_per_kv} query heads each, and head sizes from "
            f"{min_head_size} to {max_head_size}; known sizes: {HEAD_SIZES}"
        )
    return st.builds(
        KernelShape,
        kv_heads=st.sampled_from(kv_heads),
        queries_per_kv=st.sampled_from(groups),
        head_size=st.sampled_from(sizes),
    )
