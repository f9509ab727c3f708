"""The memory checker's kill rate: `python -m tests.quality.memory [--vllm TREE]`.

Every mechanical fault of some kernels' addressing is planted, the kernels' correct
launches of the catalogue are run again, and a fault is found when one of them has a
finding, or integers that are not those that it expects. A fault that does not compile
is none, nor is one after which every lane of every access has the address that it has
without: it changed floats, or what these launches do not compile in. Each survivor is
explained in `memory_survivors.toml`.
"""

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fuzz.edits import EditError, applied, function_source
from tests.quality.mechanical import Mechanical, mechanical_of_source
from tests.quality.memory_changes import memory_changes

SURVIVORS = Path(__file__).parent / "memory_survivors.toml"

_ATTENTION = ("vllm.v1.attention.ops.triton_unified_attention",)
_DECODE = ("vllm.v1.attention.ops.triton_decode_attention",)
_WRITES = ("vllm.v1.attention.ops.triton_reshape_and_cache_flash",)
_V1 = ("vllm.v1.worker.block_table",)
_V2 = ("vllm.v1.worker.gpu.block_table",)
_BUFFERS = ("vllm.v1.worker.gpu.buffer_utils",)
_ALIGNED = ("vllm.v1.attention.backends.utils",)
_COPIES = ("vllm.v1.worker.mamba_utils",)
_CONV = ("vllm.model_executor.layers.mamba.ops.causal_conv1d",)
_RECURRENT = (
    "vllm.third_party.flash_linear_attention.ops.fused_recurrent",
    "vllm.model_executor.layers.fla.ops.fused_recurrent",
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kernel, or a device function of one, and the launches that reach it.

    Attributes:
        launches: Beginnings of names in the catalogue.
    """

    modules: tuple[str, ...]
    function: str
    launches: tuple[str, ...]


SUBJECTS = (
    Subject(
        modules=_ATTENTION,
        function="kernel_unified_attention",
        launches=(
            "attention, split, block 16",
            "attention, int8",
            "attention, heads of 80",
        ),
    ),
    Subject(
        modules=_ATTENTION,
        function="reduce_segments",
        launches=("attention, split, block 16",),
    ),
    Subject(
        modules=_DECODE,
        function="_fwd_kernel_stage1",
        launches=("decode attention, heads of their own, past",),
    ),
    Subject(
        modules=_DECODE,
        function="_fwd_grouped_kernel_stage1",
        launches=("decode attention, MLA, past",),
    ),
    Subject(
        modules=_DECODE,
        function="_fwd_kernel_stage2",
        launches=("decode attention, heads of their own, past",),
    ),
    Subject(
        modules=_WRITES,
        function="reshape_and_cache_kernel_flash",
        launches=("cache write, block 544", "cache write, heads first"),
    ),
    Subject(
        modules=_WRITES,
        function="_reshape_cache_per_token_head",
        launches=("cache write, int8",),
    ),
    Subject(
        modules=_V1,
        function="ComputeSlotMappingKernel.kernel",
        launches=("slot mapping",),
    ),
    Subject(
        modules=_V1,
        function="_compute_slot_mapping_kernel",
        launches=("slot mapping",),
    ),
    Subject(
        modules=_V2,
        function="_compute_slot_mappings_kernel",
        launches=(
            "V2 tables, three",
            "V2 tables, two groups, two ranks",
            "V2 tables, a group without",
        ),
    ),
    Subject(
        modules=_V2,
        function="_gather_block_tables_kernel",
        launches=("V2 tables, three", "V2 tables, two groups, one"),
    ),
    Subject(
        modules=_BUFFERS,
        function="_apply_write_kernel",
        launches=("V2 tables, one", "V2 tables, three", "V2 tables, a long"),
    ),
    Subject(
        modules=_ALIGNED,
        function="_mamba_align_block_table_kernel",
        launches=("aligned window",),
    ),
    Subject(
        modules=_RECURRENT,
        function="fused_recurrent_gated_delta_rule_fwd_kernel",
        launches=("delta rule, decode", "delta rule, speculative"),
    ),
    Subject(
        modules=_RECURRENT,
        function="fused_recurrent_gated_delta_rule_packed_decode_kernel",
        launches=("delta rule, packed decode",),
    ),
    Subject(
        modules=_CONV,
        function="_causal_conv1d_update_kernel",
        launches=("convolution of decodes", "convolution of drafts"),
    ),
    Subject(
        modules=_COPIES,
        function="batch_memcpy_kernel",
        launches=("copied states, 2",),
    ),
    Subject(
        modules=_COPIES,
        function="_copy_mamba_state_block",
        launches=("saved states", "states brought along"),
    ),
    Subject(
        modules=_COPIES,
        function="postprocess_mamba_fused_kernel",
        launches=("saved states",),
    ),
    Subject(
        modules=_COPIES,
        function="get_aligned_state_indices_multi_group_kernel",
        launches=("windows of all groups",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a planted fault.

    Attributes:
        how: `memory`, `integers`, `survives`, `undecided`, `same accesses`, or `does
            not compile`.
        what: Of the first finding.
    """

    name: str
    how: str
    what: str = ""

    @property
    def found(self) -> bool:
        """Whether the checker showed it."""
        return self.how in {"memory", "integers"}


def mutants_of(subject: Subject) -> tuple[Mechanical, ...]:
    """All faults of a kernel; none when the tree lacks it."""
    try:
        source = function_source(subject.modules, subject.function)
    except EditError:
        return ()
    return mechanical_of_source(
        subject.function, subject.modules, source, changes=memory_changes
    )


def hunt(subject: Subject, mutant: Mechanical) -> Verdict:
    """Run the subject's launches with the fault in force until one shows it."""
    from fuzz.targets._real_launches import LAUNCHES, checked

    doubt, same = "", True
    for launch in LAUNCHES:
        if not launch.name.startswith(subject.launches) or launch.absent():
            continue
        before = _accesses_of(launch)
        with applied(mutant.edit), _recorded() as after:
            try:
                result = checked(launch)
            except AssertionError as error:
                return Verdict(name=mutant.name, how="integers", what=str(error))
            except Exception as error:
                # Triton's front end says the second where it fails itself.
                parsing = "error encountered during parsing" in str(error)
                if "Compil" not in type(error).__name__ and not parsing:
                    raise
                return Verdict(name=mutant.name, how="does not compile")
        if result.findings:
            message = result.findings[0].message
            return Verdict(name=mutant.name, how="memory", what=message)
        if result.undecided and not doubt:
            doubt = result.undecided[0].reason
        same = same and after.digest() == before
    if same and not doubt:
        return Verdict(name=mutant.name, how="same accesses")
    if doubt:
        return Verdict(name=mutant.name, how="undecided", what=doubt)
    return Verdict(name=mutant.name, how="survives")


@dataclass(eq=False)
class _Accesses:
    """Addresses and masks of every access, in order."""

    seen: Any = field(default_factory=sha256)

    def add(self, place: Any, pointer: Any, mask: Any) -> None:
        """Note one access by the parts that its lanes are made of."""
        self.seen.update(f"{place.write} {pointer.unit_bytes} {pointer.shape}".encode())
        for region in pointer.regions:
            self.seen.update(str(region and region.name).encode())
        parts = list(pointer.offset.parts)
        if pointer.which is not None:
            # An address that no lane uses lies in whatever is there by chance.
            shape = (len(place.programs), *pointer.shape)
            active = np.broadcast_to(True if mask is None else mask.dense(), shape)
            parts = [pointer.offset.dense() * active, pointer.which * active]
        if mask is not None:
            # A mask that lets every lane through is as none.
            parts += [part for part in mask.parts if not part.all()]
        for part in parts:
            self.seen.update(str(part.shape).encode())
            self.seen.update(part.tobytes())

    def digest(self) -> str:
        """Equal when every lane had the same address."""
        made: str = self.seen.hexdigest()
        return made


@contextmanager
def _recorded() -> Iterator[_Accesses]:
    from invariants.memory.accesses import judge_access

    accesses = _Accesses()

    def noting(place: Any, pointer: Any, mask: Any, **rest: Any) -> Any:
        accesses.add(place, pointer, mask)
        return judge_access(place, pointer, mask, **rest)

    with mock.patch("invariants.memory.touch.judge_access", noting):
        yield accesses


@cache
def _accesses_of(launch: Any) -> str:
    """Of a launch in which no fault is planted."""
    from fuzz.targets._real_launches import checked

    with _recorded() as accesses:
        checked(launch)
    return accesses.digest()


def hunts(
    function: str | None = None, *, told: Callable[[str], None] | None = None
) -> Iterator[tuple[Subject, list[Verdict]]]:
    """Verdicts of every fault, per kernel of the tree."""
    for subject in SUBJECTS:
        if function not in {None, subject.function}:
            continue
        verdicts = []
        for mutant in mutants_of(subject):
            verdicts.append(hunt(subject, mutant))
            if told is not None:
                told(f"{verdicts[-1].how:16} {mutant.name}")
        if verdicts:
            yield subject, verdicts


def explained() -> dict[str, str]:
    """Why each known survivor survives, by name."""
    table = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))
    return {
        name: group["why"]
        for group in table.get("survivors", ())
        for name in group["names"]
    }


def prepare(spec: str | None) -> str:
    """Make this process one that can plant faults in a tree; give its version."""
    from fuzz import boot
    from fuzz.trees import activate, resolve

    tree = resolve(spec)
    activate(tree)
    boot.prepare(platform="cpu", triton="jit")
    return tree.version


def main(arguments: list[str]) -> None:
    """Hunt and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.memory")
    parser.add_argument("--vllm", metavar="TREE")
    parser.add_argument("--kernel", metavar="FUNCTION")
    options = parser.parse_args(arguments)
    print(f"vLLM {prepare(options.vllm)}")
    why = explained()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    total: Counter[str] = Counter()
    for subject, verdicts in hunts(options.kernel, told=tell):
        counts = Counter(each.how for each in verdicts)
        total += counts
        print(f"{subject.function}\n  {_rate(counts)}")
        for each in verdicts:
            if each.how in {"survives", "undecided"}:
                print(f"    {each.how}: {each.name}")
                print(f"      {why.get(each.name, 'NOT EXPLAINED')}")
    print(f"all kernels\n  {_rate(total)}")


def _rate(counts: Counter[str]) -> str:
    found = counts["memory"] + counts["integers"]
    all_of = found + counts["survives"] + counts["undecided"]
    share = found / all_of if all_of else 0
    return (
        f"{found}/{all_of} found ({share:.0%}): {counts['memory']} by an access, "
        f"{counts['integers']} by integers; {counts['undecided']} undecided; beside "
        f"these {counts['same accesses']} that change no access, "
        f"{counts['does not compile']} that do not compile"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
