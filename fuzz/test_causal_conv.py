"""The causal convolution of recurrent layers, under the memory checker."""

from fuzz.campaign import Campaign

# A case costs ten times what one of the plainer targets does.
SHARE = 0.2


def test_contract(campaign: Campaign) -> None:
    """The wrappers as their docstrings allow."""
    campaign.search("causal_conv", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """The wrappers as the GDN layer calls them."""
    campaign.search("causal_conv", origin="wired", share=SHARE)
