"""Rejection sampling of both runners, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs twenty times what one of the plainer targets does.
SHARE = 0.1


def test_contract(campaign: Campaign) -> None:
    """`rejection_sample` with rows of any kind."""
    campaign.search("rejection_sampler", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """The sampler with the metadata and index mappings of its runner."""
    campaign.search("rejection_sampler", origin="wired", share=SHARE)
