"""Cases for page sizes: mixes of layers, and models served with drafters."""

from hypothesis import strategies as st

from invariants.model import Origin
from invariants.page_size import Case
from strategies.kv_cache_specs import kv_cache_mixes


def cases(
    *, origin: Origin, max_layers: int = 6, deployed: bool = True
) -> st.SearchStrategy[Case]:
    """Draw a case.

    Args:
        origin: `contract` for mixes of layer specs, `wired` for configurations.
        max_layers: Most layers of a mix or of a target model.
        deployed: Whether sizes known from real deployments are drawn too.
    """
    mixes = kv_cache_mixes(max_layers=max_layers, deployed=deployed)
    return mixes.map(
        lambda layers: Case(
            format_version=1, origin="contract", layers=layers
        )
    )
