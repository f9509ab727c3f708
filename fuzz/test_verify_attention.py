"""Speculative-verify attention: no address, value or write goes astray.

These cases run in processes of their own, and one that dies is a finding: a killed
process is the expected outcome of an unfixed tree.
"""

from fuzz.campaign import Campaign

# A case costs thirty times what one of the fastest property does.
SHARE = 0.04


def test_contract(campaign: Campaign) -> None:
    """Kernels on pools of any geometry that the wrapper's asserts allow."""
    campaign.search("verify_attention", origin="contract", share=SHARE)


def test_wired(campaign: Campaign) -> None:
    """Kernels on pools, scratch and metadata that the release itself makes."""
    campaign.search("verify_attention", origin="wired", share=SHARE)
