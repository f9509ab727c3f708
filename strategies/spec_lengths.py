"""Speculative lengths: how many draft tokens a step may carry per request."""

from hypothesis import strategies as st

# 0 is no speculation; 1 and 3 are common MTP depths, 5 and 15 those of the public
# report (vLLM issue 42084); 7, 15 and 31 make 1 + k a power of two, 16 just misses it.
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 63)


def spec_lengths(
    *, min_tokens: int = 0, max_tokens: int = 16
) -> st.SearchStrategy[int]:
    """Draw a speculative length; both bounds are reached, and 0 is the simplest.

    Raises:
        ValueError: When the bounds hold no length.
    """
    if not 0 <= min_tokens <= max_tokens:
        raise ValueError(
            f"spec_lengths wants 0 <= min_tokens <= max_tokens, got {min_tokens} "
            f"and {max_tokens}"
        )
    inside = {length for length in LENGTHS if min_tokens <= length <= max_tokens}
    return st.sampled_from(sorted(inside | {min_tokens, max_tokens}))
