"""What the process that has a tree says of the catalogue of correct launches."""

from collections.abc import Iterator
from itertools import islice

from tests.quality import memory

# One in so many faults of the kernels whose survivors are all explained is planted
# here; the command plants all faults of all kernels.
STRIDE = 25
EXPLAINED = (
    "reshape_and_cache_kernel_flash",
    "_reshape_cache_per_token_head",
    "ComputeSlotMappingKernel.kernel",
    "_gather_block_tables_kernel",
    "_mamba_align_block_table_kernel",
    "fused_recurrent_gated_delta_rule_fwd_kernel",
    "fused_recurrent_gated_delta_rule_packed_decode_kernel",
)


def prepare(spec: str) -> None:
    """Make this process one in which the tree's kernels are lowered and checked."""
    memory.prepare(spec)


def names() -> list[str]:
    """Of all launches."""
    from fuzz.targets._real_launches import LAUNCHES

    return [launch.name for launch in LAUNCHES]


def absent() -> dict[str, str]:
    """Launches that the tree does not have, and why."""
    from fuzz.targets._real_launches import LAUNCHES

    reasons = {launch.name: launch.absent() for launch in LAUNCHES}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def wrong(release: str) -> list[str]:
    """What is wrong with any launch, a line each."""
    return list(_wrong(release))


def _wrong(release: str) -> Iterator[str]:
    from fuzz.targets._real_launches import LAUNCHES, checked

    for launch in LAUNCHES:
        result = checked(launch)
        faults = [
            (tensor, arithmetic)
            for where, tensor, arithmetic in launch.faults
            if where == release
        ]
        for missing in result.missing:
            yield f"{launch.name}: {' or '.join(missing)} is not launched"
        for doubt in result.undecided:
            yield f"{launch.name}: undecided: {doubt.reason} ({doubt.place})"
        for finding in result.findings:
            known = [
                fault
                for fault in faults
                if fault[0] == finding.tensor and fault[1] in finding.arithmetic
            ]
            if known:
                faults.remove(known[0])
            else:
                yield f"{launch.name}: {finding.message}"
        for tensor, arithmetic in faults:
            yield f"{launch.name}: no longer found: {tensor}, {arithmetic}"


def unexplained() -> tuple[int, list[str]]:
    """How many of a sample of planted faults are found, and unexplained survivors."""
    why = memory.explained()
    found, left = 0, []
    for subject in memory.SUBJECTS:
        if subject.function not in EXPLAINED:
            continue
        for mutant in islice(memory.mutants_of(subject), 1, None, STRIDE):
            verdict = memory.hunt(subject, mutant)
            found += verdict.found
            survives = verdict.how in {"survives", "undecided"}
            if survives and mutant.name not in why:
                left.append(f"{verdict.how}: {mutant.name}")
    return found, left
