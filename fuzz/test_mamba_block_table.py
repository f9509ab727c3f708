"""The aligned Mamba block table: a step's kernels see the request's own state blocks.

Wired cases serve requests through the release's own allocation, sizing and filling;
contract cases give the function any table that its docstring allows.
"""

from fuzz.campaign import Campaign


def test_contract(campaign: Campaign) -> None:
    """Tables of the documented width, any strides, any sequence lengths."""
    campaign.search("mamba_block_table", origin="contract")


def test_wired(campaign: Campaign) -> None:
    """Tables as the workers size and fill them, step by step."""
    campaign.search("mamba_block_table", origin="wired", share=0.3)
