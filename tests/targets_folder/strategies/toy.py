"""Cases of the toy target, with full and partly full last blocks."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from invariants.toy import Case

from invariants.model import Origin


def cases(*, origin: Origin, max_tokens: int = 100) -> SearchStrategy[Case]:
    """Cases that only divide."""
    return st.builds(
        Case,
        origin=st.just(origin),
        tokens=st.integers(0, max_tokens),
        block_size=st.integers(1, 16),
    )
