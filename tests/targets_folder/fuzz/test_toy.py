"""The property of the toy target."""

from fuzz.campaign import Campaign


def test_contract(campaign: Campaign) -> None:
    """Any numbers that the contract allows."""
    campaign.search("toy", origin="contract")
