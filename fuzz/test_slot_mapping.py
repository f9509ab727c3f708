"""Mapping tokens to slots, under the memory checker."""

from fuzz.campaign import Campaign

# Steps of a thousand tokens are mapped token by token in the reference.
SHARE = 0.2


def test_contract(campaign: Campaign) -> None:
    """Any block sizes and pools, rows that no request has."""
    campaign.search("slot_mapping", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """Tables as the release sizes them, calls as its runners make them."""
    campaign.search("slot_mapping", origin="wired", share=SHARE)
