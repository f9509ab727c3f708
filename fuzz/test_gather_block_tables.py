"""Gathering a step's block tables, under the memory checker."""

from fuzz.campaign import Campaign

# A case launches three kernels and compares whole tables.
SHARE = 0.2


def test_contract(campaign: Campaign) -> None:
    """Any block sizes, any order of groups."""
    campaign.search("gather_block_tables", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """Groups that the release's own planning makes."""
    campaign.search("gather_block_tables", origin="wired", share=SHARE)
