"""The command that shows which Triton kernels of a tree the memory checker can judge.

Kernels are found in the tree's sources, lowered in worker processes, and compared with
what targets and the catalogue of launches reach.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from fuzz.kernels.progress import Progress
from fuzz.kernels.protocol import Answer, Task
from fuzz.kernels.sources import SourceKernel, catalogue, kernels_of, targets_naming
from fuzz.kernels.table import Row, as_json, show
from fuzz.kernels.workers import survey
from fuzz.trees import Tree, TreeError, resolve
from fuzz.trees.release import DEFAULT_RELEASE


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0, or 2 when the survey cannot be made."""
    options = _parser().parse_args(arguments)
    try:
        tree = resolve(options.vllm, patches=options.vllm_patches, progress=_tell)
        rows = _rows(tree, match=options.match, jobs=options.jobs)
    except (TreeError, SyntaxError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not rows:
        print(f"error: no kernel's name contains {options.match!r}", file=sys.stderr)
        return 2
    if options.json:
        print(as_json(tree, rows))
    else:
        show(tree, rows)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.kernels",
        description="The Triton kernels of a tree: lowered or not, what of them the "
        "memory checker does not know, and what launches them.",
    )
    parser.add_argument(
        "--vllm",
        metavar="TREE",
        help="a release, `installed`, or a path (default: KVFUZZ_VLLM, else "
        f"{DEFAULT_RELEASE})",
    )
    parser.add_argument(
        "--vllm-patches", type=Path, metavar="DIR", help="apply the patch series in DIR"
    )
    parser.add_argument(
        "--match",
        metavar="TEXT",
        default="",
        help="only kernels whose module and name, joined by a colon, contain TEXT",
    )
    parser.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        default=os.cpu_count() or 1,
        help="worker processes (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} workers can do nothing")
    return count


def _rows(tree: Tree, *, match: str, jobs: int) -> list[Row]:
    """All kernels that match, with what came of each."""
    _tell(f"reading the sources of vLLM {tree.version}")
    began = time.monotonic()
    kernels = tuple(
        each for each in kernels_of(tree.root) if match in f"{each.module}:{each.name}"
    )
    lowerable = [
        each for each in kernels if each.language == "triton" and not each.device
    ]
    answers: dict[str, list[Answer]] = {each.key: [] for each in lowerable}
    if lowerable:
        progress = Progress(len(lowerable))

        def note(answer: Answer) -> None:
            # The catalogue launches kernels that do not match, too.
            if answer.key in answers:
                answers[answer.key].append(answer)
                progress.done(sum(map(bool, answers.values())))

        survey(tree, _tasks(lowerable), jobs=jobs, on_answer=note, on_trouble=_tell)
        progress.close()
    named = targets_naming(kernels)
    _tell(f"{len(kernels)} kernels in {time.monotonic() - began:.0f} s")
    return [
        Row.of(each, tuple(answers.get(each.key, ())), targets=named[each.key])
        for each in kernels
    ]


def _tasks(kernels: list[SourceKernel]) -> list[Task]:
    """Launches first, for they take longest; then a task per module."""
    modules: dict[str, list[SourceKernel]] = {}
    for kernel in kernels:
        modules.setdefault(kernel.module, []).append(kernel)
    # As launches name them: qualified, without module.
    names = tuple({each.name for each in kernels})
    return [
        *(Task(module=name, launching=names) for name in catalogue()),
        *(
            Task(module=name, kernels=tuple(found))
            for name, found in sorted(modules.items())
        ),
    ]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # A reader that closes the pipe early (head) ends this as it ends any filter.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
