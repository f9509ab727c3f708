"""Apply a patch series on a copy of a tree, exactly or not at all, and say what it did.

`git apply` does the work outside any repository. A hunk that lands elsewhere than its
patch says is an error, since it may land in code that only looks alike.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fuzz.trees.changes import describe_changes
from fuzz.trees.series import read_series
from fuzz.trees.tree import (
    KEPT_SUFFIXES,
    Tree,
    TreeError,
    declare,
    digest_of,
    explained,
    locked,
    measure,
    read_verified,
    staged,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOTHING_CHANGED = (
    "WARNING: these patches change nothing under vllm/; the tree under test is the "
    "unpatched {version}. Does the series carry a test without its fix?"
)

COPIED_BYTES_MAX = 2**21


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where one patch goes: its files, and the folder its paths start from.

    Attributes:
        patch: The patch file.
        inside: True if the paths start inside `vllm/`, False at the folder above it.
        applied: Paths as the patch has them, less the first component.
        skipped: Paths outside `vllm/`.
    """

    patch: Path
    inside: bool
    applied: tuple[str, ...]
    skipped: tuple[str, ...]


def patched_tree(
    tree: Tree, series: Path, *, cache: Path, progress: Callable[[str], None]
) -> Tree:
    """Give a copy of a tree with a patch series applied.

    The copy is kept by the tree's digest and the contents of the patches.

    Args:
        tree: The tree to patch; it stays as it is.
        series: A folder with a file `series`, or else its `*.patch` in order of name.
        cache: Where trees are kept.
        progress: Told when the copy has to be made.

    Raises:
        TreeError: The series cannot be read, or does not apply exactly.
    """
    patches = read_series(series)
    # The first number stands for how this module copies, applies and describes.
    key = hashlib.sha256(f"1\0{tree.digest}\0{tree.version}\0".encode())
    for patch in patches:
        content = patch.read_bytes()
        key.update(f"{patch.name}\0{len(content)}\0".encode() + content)
    name = f"{_file_safe(tree.version)}-{key.hexdigest()[:16]}"
    folder = cache / "patched" / name
    remedy = f"remove {folder} and run again"
    manifest = read_verified(folder, remedy=remedy)
    if manifest is None:
        with locked(cache, f"patched-{name}", progress=progress):
            manifest = read_verified(folder, remedy=remedy)
            if manifest is None:
                progress(f"applying {len(patches)} patches to vLLM {tree.version}")
                with staged(folder, progress=progress) as staging:
                    _make(tree, patches, staging)
                manifest = read_verified(folder, remedy=remedy)
    assert manifest is not None
    files, notes = manifest["files"], manifest["notes"]
    assert isinstance(files, dict)
    assert isinstance(notes, list)
    return replace(
        tree,
        root=folder / "site-packages",
        patches=tuple(p.name for p in patches),
        digest=digest_of(files),
        notes=(*tree.notes, *notes),
    )


def _make(tree: Tree, patches: list[Path], staging: Path) -> None:
    """Copy a tree to `staging/ready`, patch the copy and write down what changed."""
    site_packages = staging / "ready" / "site-packages"
    package = site_packages / "vllm"
    _copy(tree.root / "vllm", package)
    declare(site_packages, tree.version)
    before = measure(site_packages)
    notes: list[str] = []
    for patch in patches:
        placed = _place(patch, package)
        if placed.applied:
            _apply(placed, package)
            where = "inside vllm/" if placed.inside else "at the folder that has vllm/"
            notes.append(f"{patch.name}: applied {where}")
        else:
            notes.append(f"{patch.name}: nothing of it applies to vllm/")
        notes += [f"{patch.name}: skipped {s} (outside vllm/)" for s in placed.skipped]
    after = measure(site_packages)
    changes = describe_changes(tree.root, site_packages, before=before, after=after)
    if not changes:
        changes = [NOTHING_CHANGED.format(version=tree.version)]
    write_manifest(staging / "ready", files=after, notes=[*notes, *changes])


def _copy(source: Path, target: Path) -> None:
    """Copy a package; its large files (compiled ones) become links."""

    def transfer(file: str, copy: str) -> None:
        small = Path(file).stat().st_size <= COPIED_BYTES_MAX
        if small or file.endswith(KEPT_SUFFIXES):
            shutil.copyfile(file, copy)
        else:
            Path(copy).symlink_to(Path(file).resolve())

    with explained(target.parent):
        shutil.copytree(
            source,
            target,
            copy_function=transfer,
            ignore=shutil.ignore_patterns("__pycache__"),
            ignore_dangling_symlinks=True,
        )


def _place(patch: Path, package: Path) -> Placed:
    """Find the folder that a patch's paths start from, and what of it concerns us.

    Paths that start with `vllm/` do so at the folder above. Otherwise the patch was
    made inside, if it changes a file that is there, or touches a folder of which only
    `vllm/` has one; whatever else it has is outside.
    """
    paths = _paths_in(patch)
    below = tuple(p for p in paths if p.startswith("vllm/"))
    if below:
        others = tuple(p for p in paths if p not in below)
        return Placed(patch=patch, inside=False, applied=below, skipped=others)
    if any((package / p).is_file() for p in paths):
        known = {entry.name for entry in package.iterdir()}
        below = tuple(p for p in paths if PurePosixPath(p).parts[0] in known)
    others = tuple(p for p in paths if p not in below)
    return Placed(patch=patch, inside=True, applied=below, skipped=others)


def _paths_in(patch: Path) -> tuple[str, ...]:
    """The files that a patch touches, less the first component of each path."""
    done = _git(["--numstat", "-z", "-p1", str(patch.resolve())], cwd=patch.parent)
    if done.returncode != 0:
        msg = (
            f"{patch} is not a patch that git understands ({_last_line(done.stderr)}): "
            "expected is a unified diff with a/ and b/ paths, as git diff writes it"
        )
        raise TreeError(msg)
    rows = [row for row in done.stdout.split("\0") if row]
    return tuple(dict.fromkeys(row.split("\t", 2)[2] for row in rows))


def _apply(placed: Placed, package: Path) -> None:
    """Apply a patch, refusing hunks that fail or land elsewhere.

    The folder belongs to a staged tree, which is thrown away if this raises; so hunks
    that fail are let write their rejects, for git then says which they are.
    """
    folder = package if placed.inside else package.parent
    names = [re.sub(r"([\\*?\[])", r"\\\1", path) for path in placed.applied]
    options = ["-p1", "--verbose", "--reject", "--whitespace=nowarn"]
    options += [f"--include={name}" for name in names]
    patch = str(placed.patch.resolve())
    done = _git([*options, patch], cwd=folder)
    troubles = _troubles(done.stderr)
    if done.returncode != 0 or troubles:
        reverse = ["-p1", "--reverse", "--check", *options[4:], patch]
        applied_already = _git(reverse, cwd=folder).returncode == 0
        what = "; ".join(troubles) or _last_line(done.stderr)
        msg = f"{placed.patch.name} does not apply exactly to this tree: {what}. " + (
            "Its change is in the tree already: leave the patch out"
            if applied_already and done.returncode != 0
            else "Make the patch anew on this version, or name the version it is for"
        )
        raise TreeError(msg)
    links = [p for p in placed.applied if (folder / p).is_symlink()]
    if links:
        msg = (
            f"{placed.patch.name} makes {links[0]} a link or changes a compiled file, "
            "which is not supported: patch files of text only"
        )
        raise TreeError(msg)


def _troubles(output: str) -> list[str]:
    """What git said of hunks that failed or moved, each with its file."""
    troubles: list[str] = []
    file = ""
    for line in output.splitlines():
        if match := re.fullmatch(
            r"\w+ patch (.*?)(?: => .*)?(?: with \d+ rejects?)?\.\.\.", line
        ):
            file = match[1]
        elif match := re.match(r"Hunk #(\d+) succeeded at (\d+) \((.*)\)", line):
            troubles.append(
                f"hunk {match[1]} of {file} lands at line {match[2]}, with {match[3]}"
            )
        elif match := re.match(r"Rejected hunk #(\d+)", line):
            troubles.append(f"hunk {match[1]} of {file} does not fit")
        elif match := re.match(r"error: (.*: (?:No such file|already exists).*)", line):
            troubles.append(match[1])
    return troubles


def _git(options: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `git apply` as if there were no repository and no configuration around."""
    environment = os.environ | {
        "LC_ALL": "C",
        "GIT_CEILING_DIRECTORIES": str(cwd.resolve().parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)
    try:
        return subprocess.run(
            ["git", "apply", *options],
            cwd=cwd,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        msg = "patches are applied with `git apply`, and git is not installed"
        raise TreeError(msg) from error


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "git said nothing"


def _file_safe(version: str) -> str:
    return re.sub(r"[^0-9A-Za-z.]", "_", version)[:40]
