"""Cases of the toy target: two numbers, zero among them."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from invariants.toy import Case

from invariants.model import Origin


def cases(*, origin: Origin, max_number: int = 100) -> SearchStrategy[Case]:
    """Cases that only add."""
    numbers = st.integers(0, max_number)
    return st.builds(Case, origin=st.just(origin), left=numbers, right=numbers)
