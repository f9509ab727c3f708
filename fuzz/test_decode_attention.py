"""Decode attention, both stages, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs twenty times what one of the plainer targets does.
SHARE = 0.1


def test_contract(campaign: Campaign) -> None:
    """The wrapper on views of any geometry."""
    campaign.search("decode_attention", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """What the Triton MLA backend launches for a step's decodes."""
    campaign.search("decode_attention", origin="wired", share=SHARE)
