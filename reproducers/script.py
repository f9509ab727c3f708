"""Generates repro.py: one file that shows a fault on vLLM's real code, without kvfuzz.

The project modules that a case needs are flattened below its case; no module of the
target is imported for it. What only the memory checker can show has a script that needs
the project, and says so. Same case and same sources give the same bytes.
"""

import ast
import json
import textwrap
from dataclasses import replace
from pathlib import Path

import fuzz.targets
from fuzz.execution import split_site
from invariants.model import FaultKey
from reproducers.case_file import Saved
from reproducers.display import harmless
from reproducers.flatten import (
    RULE,
    Source,
    assignment,
    check_names,
    load,
    needs_future_annotations,
    ordered,
    section,
)

WIDTH = 88
# What the run below a script's case has no use for.
LEFT_OUT = ("RUNTIME", "CONTROLS")

ABOUT = """\
{title}

{statement}

Seen:      {message}
Severity:  {severity}
Input:     {origin}
Found on:  vLLM {version} (tree {digest}{patches}), torch {torch}, triton {triton},
           Python {python}

{needs}

    python repro.py                 vLLM as installed
    python repro.py --vllm PATH     a folder that contains vllm/

BROKEN ARM runs the case on that vLLM as it is, FIXED ARM with the fix
{fixes} applied in memory.
Exit status: 1 when the fault shows, 0 when it does not, 2 when neither is known. The
case is CASE_JSON; run() calls vLLM with it, judge() checks what came of it, FIXES holds
the fix.
{killed}
Generated from case.json and kvfuzz's sources; do not edit, but generate it anew:
    python -m reproducers script {id}
"""

ALONE = """\
Run it with Python 3.11 or 3.12, torch, triton and vLLM; nothing else is needed, no GPU
and no compiled vLLM either (vLLM's Python files and what they import are enough):"""
PACKAGED = """\
Run it where kvfuzz is installed (`pip install -e .` in its folder): its memory checker,
which is too large for one file, is what shows this fault. Beside it torch, triton and
vLLM are needed, no GPU and no compiled vLLM (vLLM's Python files and what they import
are enough):"""
# Of the project itself, so that a script whose target imports it cannot stand alone.
CHECKER = "invariants.memory."

KILLED = """
Each arm runs in a process of its own. That a process is killed (signal 11, say) is the
expected outcome on an unfixed tree: its code uses memory that is not its own.
"""

ORIGINS = {
    "wired": "made by vLLM's own sizing and allocation code (origin: wired)",
    "contract": "anything that the function's documented contract allows "
    "(origin: contract)",
}

ARMS = """\
CASE = decode(CASE_JSON, Case)
CLAIM = Claim(
    key=FaultKey(
        target={target!r},
        invariant={invariant!r},
        origin={origin!r},
        site={site!r},
        exception={exception!r},
    ),
    case=CASE,
    runtime=RUNTIME,
    judge=judge,
)

if __name__ == "__main__" and not is_arm(sys.argv[1:]):
    sys.exit(run_both(CLAIM, sys.argv[1:]))
"""

PREPARED = """\
put_tree_first(sys.argv[1:])
prepare(platform=RUNTIME.platform, triton=RUNTIME.triton)
"""

ARM = """\
if __name__ == "__main__":
    run_arm(
        CLAIM, sys.argv[1:], run=run, absent=absent, fixes=FIXES, home={home}
    )
"""


PACKAGED_IMPORTS = """\
import sys

from fuzz.boot import prepare
from fuzz.runtime import Runtime
from invariants.{target} import Case, judge
from invariants.model import FaultKey, decode
from reproducers.fixes.{target} import FIXES
from reproducers.standalone import Claim, is_arm, put_tree_first, run_arm, run_both
"""

PACKAGED_RUN = "from fuzz.targets.{target} import absent, run\n"


def project_roots() -> tuple[Path, ...]:
    """Folders that hold the rooms: the project's, then those of users' targets."""
    return tuple(Path(each).parents[1] for each in fuzz.targets.__path__)


def script(saved: Saved, *, roots: tuple[Path, ...] | None = None) -> str:
    """The text of a saved case's repro.py.

    Args:
        saved: The case.
        roots: Folders in which project modules are looked up; all known ones when
            left out.

    Raises:
        ScriptError: When the modules cannot stand in one file.
    """
    roots = project_roots() if roots is None else roots
    shown = _shown_as(saved, roots)
    target = shown.target
    target_source = load(f"fuzz.targets.{target}", roots)
    alone = _alone(target_source, shown.invariant, roots)
    if any(need.startswith(CHECKER) for need in alone.needs):
        runtime = assignment(target_source, "RUNTIME")
        return _packaged(saved, runtime, home=_home_of_fixes(target, roots))
    shared = ordered((f"invariants.{target}", "reproducers.standalone"), roots)
    names = {source.name for source in shared}
    fixes = _fixes(target, roots)
    run_names = ["fuzz.boot", alone.name, *fixes]
    below = [each for each in ordered(run_names, roots) if each.name not in names]
    boot = [each for each in below if each.name == "fuzz.boot"]
    rest = [each for each in below if each.name != "fuzz.boot"]
    check_names([*shared, *below])
    # What a target declares of its process, the first process needs too.
    runtime = assignment(target_source, "RUNTIME")
    parts = [_docstring(saved, isolated="isolated=True" in runtime)]
    if needs_future_annotations([*shared, *below]):
        parts.append("from __future__ import annotations\n")
    parts.append(f'CASE_JSON = """\\\n{_quoted(json_text(saved.case))}\n"""\n')
    parts += [section(source) for source in shared]
    parts += [
        _heading("The case and what is claimed of it; the first process ends here"),
        f"{runtime}\n",
        _arms(shown),
        *(section(source) for source in boot),
        _heading("vLLM can be imported from here on"),
        PREPARED,
        *(section(source, without=LEFT_OUT) for source in rest),
        *([] if fixes else ["FIXES: tuple[Fix, ...] = ()\n"]),
        _heading("One arm, in a child process"),
        ARM.format(home="__name__"),
    ]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    compile(text, f"repro.py of {saved.id}", "exec", dont_inherit=True)
    return text


def _packaged(saved: Saved, runtime: str, *, home: str) -> str:
    """The script of a fault that only the memory checker shows."""
    parts = [
        _docstring(saved, isolated=False, packaged=True),
        PACKAGED_IMPORTS.format(target=saved.target),
        f'CASE_JSON = """\\\n{_quoted(json_text(saved.case))}\n"""\n',
        f"{runtime}\n",
        _arms(_key(saved)),
        PREPARED,
        PACKAGED_RUN.format(target=saved.target),
        ARM.format(home=home),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _arms(key: FaultKey) -> str:
    return ARMS.format(
        target=key.target,
        invariant=key.invariant,
        origin=key.origin,
        site=key.site,
        exception=key.exception,
    )


def _key(saved: Saved) -> FaultKey:
    # Of a fault beside a known one the fixed arm fails too, and with the same key.
    site, _ = split_site(saved.site)
    return FaultKey(
        target=saved.target,
        invariant=saved.invariant,
        origin=saved.origin,
        site=site,
        exception=saved.exception,
    )


def _shown_as(saved: Saved, roots: tuple[Path, ...]) -> FaultKey:
    """What the script claims: the fault, or what stands in for it.

    The memory checker is no part of a script: its targets name one whose process dies
    of the same access (`STAND_IN`: target, law, ending, and the tensors whose accesses
    end so), and which takes the same case.
    """
    key = _key(saved)
    source = load(f"fuzz.targets.{saved.target}", roots)
    declared = assignment(source, "STAND_IN", default="")
    if not declared:
        return key
    target, invariant, exception, tensors = ast.literal_eval(
        declared.partition("=")[2].strip()
    )
    kernel, _, tensor = key.site.partition(": ")
    if tensor not in tensors:
        return key
    return replace(
        key,
        target=target,
        invariant=invariant,
        exception=exception,
        site=kernel,
    )


def _alone(target: Source, law: str, roots: tuple[Path, ...]) -> Source:
    """The module whose `run` a script has: the target's, or one that it names.

    A target that runs kernels in the memory checker may name one that runs them in
    Triton's interpreter, and the laws that only the checker judges (`ALONE`).
    """
    declared = assignment(target, "ALONE", default="")
    if not declared:
        return target
    module, checked = ast.literal_eval(declared.partition("=")[2].strip())
    return target if law in checked else load(module, roots)


def _fixes(target: str, roots: tuple[Path, ...]) -> tuple[str, ...]:
    """The module of a target's fixes, where somebody has written one."""
    relative = Path("reproducers", "fixes", f"{target}.py")
    exists = any((root / relative).is_file() for root in roots)
    return (f"reproducers.fixes.{target}",) if exists else ()


def _home_of_fixes(target: str, roots: tuple[Path, ...]) -> str:
    """Where a packaged script finds functions that take the place of the tree's."""
    named = [name for name in _fixes(target, roots) if _replaces(load(name, roots))]
    return f'"{named[0]}"' if named else "__name__"


def _replaces(fixes: Source) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == "Replacement"
        for node in ast.walk(fixes.tree)
    )


def _heading(text: str) -> str:
    return f"{RULE}\n# {text}.\n{RULE}"


def _docstring(saved: Saved, *, isolated: bool, packaged: bool = False) -> str:
    found_on = saved.found_on
    about = ABOUT.format(
        title=f"{saved.id}: {saved.invariant} is broken at {saved.site}.",
        statement=saved.statement,
        message=saved.message,
        severity=saved.severity,
        origin=ORIGINS[saved.origin],
        version=found_on.version,
        digest=found_on.digest[:16],
        patches="".join(f", patch {each}" for each in found_on.patches),
        torch=found_on.torch,
        triton=found_on.triton,
        python=found_on.python,
        needs=PACKAGED if packaged else ALONE,
        fixes=(
            f"of kvfuzz's reproducers/fixes/{saved.target}.py"
            if packaged
            else "at the end of this file"
        ),
        killed=KILLED if isolated else "",
        id=saved.id,
    )
    lines = [_wrapped(line) for line in about.splitlines()]
    return f'"""{_quoted(chr(10).join(lines))}\n"""'


def _wrapped(line: str) -> str:
    shown = harmless(line)
    if len(shown) <= WIDTH:
        return shown
    label = len(shown) - len(shown.lstrip())
    after = shown.find(":  ")
    if 0 < after < 12:
        label = 11
    return textwrap.fill(shown, width=WIDTH, subsequent_indent=" " * label)


def _quoted(text: str) -> str:
    """Text that stands between triple quotes."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def json_text(value: object) -> str:
    """JSON for people: what fits a line stands on one; keys are sorted."""
    return "\n".join(_json_lines(value, indent=0, room=WIDTH))


def _json_lines(value: object, *, indent: int, room: int) -> list[str]:
    """Lines of a JSON value that starts with `room` columns left on its first line."""
    flat = json.dumps(value, sort_keys=True)
    if len(flat) <= room or not isinstance(value, dict | list) or not value:
        return [flat]
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        labelled = [(f"{json.dumps(key)}: ", value[key]) for key in sorted(value)]
    else:
        labelled = [("", item) for item in value]
    lines = []
    for label, item in labelled:
        left = WIDTH - len(pad) - len(label) - 1
        first, *more = _json_lines(item, indent=indent + 2, room=left)
        lines += [f"{pad}{label}{first}", *more]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        # Long lists of numbers fill their lines.
        lines = textwrap.wrap(
            flat[1:-1], WIDTH, initial_indent=pad, subsequent_indent=pad
        )
    brackets = "{}" if isinstance(value, dict) else "[]"
    return [brackets[0], *lines, " " * indent + brackets[1]]
