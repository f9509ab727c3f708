"""Attention kernels under the memory checker: every access of every program."""

from fuzz.campaign import Campaign

# A case costs eight times one of the fastest property, a new shape far more.
SHARE = 0.12


def test_contract(campaign: Campaign) -> None:
    """Kernels on pools of any geometry that the wrapper's asserts allow."""
    campaign.search("attention_memory", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """Kernels on pools, scratch and metadata that the release itself makes."""
    campaign.search("attention_memory", origin="wired", share=SHARE)
