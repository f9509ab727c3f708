"""What a target makes of a log of the memory checker."""

from dataclasses import replace

from invariants.memory.findings import Finding
from invariants.memory.launches import Log


def findings_of(log: Log) -> tuple[Finding, ...]:
    """Findings whose files are named from their package on, as in every checkout."""
    return tuple(_without_root(each) for each in log.findings)


def _without_root(finding: Finding) -> Finding:
    for package in ("/vllm/", "/fuzz/"):
        before, found, after = finding.file.rpartition(package)
        if found and before:
            return replace(finding, file=f"{package[1:]}{after}")
    return finding
