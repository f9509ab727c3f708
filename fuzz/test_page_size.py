"""Page sizes are unified, planned and allocated as their laws say."""

from fuzz.campaign import Campaign


def test_contract(campaign: Campaign) -> None:
    """Any mix of layers comes to one page size, or is refused as documented."""
    campaign.search("page_size", origin="contract", share=0.7)


def test_wired(campaign: Campaign) -> None:
    """Any model and drafter get a plan that holds them, or a documented error."""
    campaign.search("page_size", origin="wired", share=0.5)
