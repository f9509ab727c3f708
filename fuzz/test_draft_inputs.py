"""Kernels that make the next step's inputs from drafts, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs ten times what one of the plainer targets does.
SHARE = 0.2


def test_contract(campaign: Campaign) -> None:
    """Batches of every kind, pools of any size."""
    campaign.search("draft_inputs", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """Batches that a scheduler makes, at sizes of deployments."""
    campaign.search("draft_inputs", origin="wired", share=SHARE)
