"""Writes that the host stages for tensors of the GPU, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs some times what one of the plainer targets does.
SHARE = 0.3


def test_contract(campaign: Campaign) -> None:
    """Tensors of any size, one or several at once."""
    campaign.search("staged_writes", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """The states of requests, as the model runner adds and ends requests."""
    campaign.search("staged_writes", origin="wired", share=SHARE)
