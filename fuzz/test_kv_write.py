"""Kernels that write keys and values, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs three times what one of the fastest property does.
SHARE = 0.35


def test_contract(campaign: Campaign) -> None:
    """The wrappers on views of any geometry."""
    campaign.search("kv_write", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """The backend's cache update on the pool as the release views it."""
    campaign.search("kv_write", origin="wired", share=SHARE)
