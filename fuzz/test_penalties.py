"""What sampling parameters make of logits in V2, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs ten times what one of the plainer targets does.
SHARE = 0.15


def test_contract(campaign: Campaign) -> None:
    """One part on rows at any distance."""
    campaign.search("penalties", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """The sampler, which applies every part."""
    campaign.search("penalties", origin="wired", share=SHARE)
