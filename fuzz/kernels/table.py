"""The survey of kernels as people read it, and as one JSON document."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from fuzz.kernels.protocol import Answer, Gap
from fuzz.kernels.sources import SourceKernel
from fuzz.trees import Tree

GLUON = "gluon: has no TTIR"
DEVICE = "a device function: lowered within its callers"
# What a target would be worth most for, in this order; parts of a module's name.
WORTH = (
    *("v1.worker", "v1.attention", "v1.sample", "flash_linear_attention", ".fla."),
    "mamba",
)
NEXT_MAX = 40
STYLES = {"understood": "green", "undecided": "yellow", "not lowered": "red"}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kernel and what is known of it.

    Attributes:
        reason: Why it is not lowered, "" when it is.
        signature: ``guessed`` or ``launched``.
        unknown: Operations that the memory checker does not know.
        gaps: What may leave a launch undecided.
        undecided: What launches of the catalogue left undecided.
        launches: Launches of the catalogue that reached it.
        targets: Targets that launch it, by their sources.
    """

    module: str
    name: str
    line: int
    reason: str
    signature: str
    tries: int
    unknown: tuple[str, ...]
    gaps: tuple[Gap, ...]
    undecided: tuple[str, ...]
    launches: tuple[str, ...]
    targets: tuple[str, ...]

    @classmethod
    def of(
        cls,
        kernel: SourceKernel,
        answers: tuple[Answer, ...],
        *,
        targets: tuple[str, ...],
    ) -> Self:
        """Put together what is known; a launch's signature comes before guesses."""
        launched = [each for each in answers if each.launch]
        guessed = [each for each in answers if not each.launch]
        used = launched or guessed
        reason = "" if launched else "not reached by the survey"
        if kernel.language == "gluon":
            reason = GLUON
        elif kernel.device:
            reason = DEVICE
        elif not launched and guessed:
            reason = guessed[0].reason
        return cls(
            module=kernel.module,
            name=kernel.name,
            line=kernel.line,
            reason=reason,
            signature=used[0].signature if used else "",
            tries=0 if launched or not guessed else guessed[0].tries,
            unknown=_once(name for each in used for name in each.unknown),
            gaps=_once(gap for each in used for gap in each.gaps),
            undecided=_once(line for each in launched for line in each.undecided),
            launches=_once(each.launch for each in launched),
            targets=targets,
        )

    @property
    def counted(self) -> bool:
        """Whether it is launched on its own, and is Triton's."""
        return self.reason not in {DEVICE, GLUON}

    @property
    def reached(self) -> bool:
        """Whether a target or the catalogue launches it."""
        return bool(self.launches or self.targets)

    @property
    def state(self) -> str:
        """Of `STYLES`."""
        if self.reason:
            return "not lowered"
        return "understood" if self.understood else "undecided"

    @property
    def understood(self) -> bool:
        """Whether nothing of a launch would stay undecided."""
        return not self.reason and not self.gaps and not self.undecided


def _once(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def as_json(tree: Tree, rows: Sequence[Row]) -> str:
    """Tree, summary and all kernels, device functions included."""
    document = {
        "tree": {"spec": tree.spec, "version": tree.version, "digest": tree.digest},
        "summary": summary(rows),
        "next": [f"{row.module}:{row.name}" for row in worth_a_target(rows)],
        "kernels": rows,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def summary(rows: Sequence[Row]) -> dict[str, int]:
    """How many kernels there are, and how many of them are what."""
    counted = [row for row in rows if row.counted]
    return {
        "kernels": len(counted),
        "lowered": sum(not row.reason for row in counted),
        "guessed": sum(row.signature == "guessed" for row in counted),
        "understood": sum(row.understood for row in counted),
        "launched": sum(row.reached for row in counted),
        "gluon": sum(row.reason == GLUON for row in rows),
        "device_functions": sum(row.reason == DEVICE for row in rows),
    }


def worth_a_target(rows: Sequence[Row]) -> list[Row]:
    """Kernels of the KV cache's folders that nothing launches, the best known first."""

    def place(row: Row) -> int:
        return next(
            (at for at, part in enumerate(WORTH) if part in f"{row.module}."),
            len(WORTH),
        )

    found = [
        row
        for row in rows
        if row.counted and not row.reached and place(row) < len(WORTH)
    ]
    return sorted(found, key=lambda row: (place(row), bool(row.reason), row.module))


def show(tree: Tree, rows: Sequence[Row]) -> None:
    """Print kernels by module, then the summary and what is next."""
    console = Console(highlight=False, soft_wrap=True)
    module = ""
    for row in rows:
        if row.reason == DEVICE:
            continue
        if row.module != module:
            module = row.module
            console.print(Text(module, style="bold"))
        console.print(Text(f"  {row.state:11}", style=STYLES[row.state]), end="")
        console.print(Text(" · ".join((f" {row.name}", *_said(row)))))
    console.print()
    for line in _summary_lines(tree, rows):
        console.print(Text(line))


def _said(row: Row) -> Iterator[str]:
    """What is to be said of a kernel beside its name and state."""
    if row.reason:
        yield row.reason
    elif row.launches:
        yield f"launched: {', '.join(row.launches)}"
    else:
        yield "guessed" if row.tries == 1 else f"guessed, {row.tries} tries"
    if row.targets:
        yield f"target {', '.join(row.targets)}"
    if row.unknown:
        yield f"unknown: {', '.join(row.unknown)}"
    deciding: dict[str, list[str]] = {}
    for gap in row.gaps:
        deciding.setdefault(gap.what, []).append(gap.operation)
    for what, operations in deciding.items():
        yield f"{what}: {', '.join(_once(operations))}"
    if row.undecided:
        yield f"undecided: {'; '.join(row.undecided)}"


def _summary_lines(tree: Tree, rows: Sequence[Row]) -> Iterator[str]:
    counts = summary(rows)
    yield (
        f"vLLM {tree.version}: {counts['kernels']} kernels, "
        f"{counts['lowered']} lowered ({counts['guessed']} by a guessed signature), "
        f"{counts['understood']} fully understood, "
        f"{counts['launched']} launched by targets or the catalogue; "
        f"{counts['gluon']} gluon, {counts['device_functions']} device functions"
    )
    failed = Counter(_kind(row.reason) for row in rows if row.counted and row.reason)
    for kind, count in failed.most_common():
        yield f"  not lowered: {count:4} {kind}"
    doubtful = Counter(
        f"{operation} may touch memory"
        if what == "memory"
        else f"{what} depends on {operation}"
        for row in rows
        for operation, what in _once((gap.operation, gap.what) for gap in row.gaps)
    )
    for what, count in doubtful.most_common():
        yield f"  in {count:4} kernels {what}"
    chosen = worth_a_target(rows)
    shown = chosen[:NEXT_MAX]
    if shown:
        yield f"next ones worth a target, {len(shown)} of {len(chosen)}:"
    for row in shown:
        yield f"  {row.state:11} {row.module}:{row.name}"


def _kind(reason: str) -> str:
    return reason.partition(":")[0]
