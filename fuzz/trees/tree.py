"""What a tree is, how its content is measured, and where trees are kept.

A tree's content is the hash of each of its files; its digest is the hash of those of
its Python files. Both are computed anew at every use: 0.15 s for 3,200 files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Kind = Literal["release", "installed", "path"]

# What a tree needs of vLLM beside its modules: tables of tuned kernel configurations
# and chat templates. Compiled extensions are not among it.
KEPT_SUFFIXES = (".py", ".json", ".jinja")
MANIFEST_FORMAT = 1


class TreeError(Exception):
    """A tree cannot be had; says what was given, what was expected, what to do."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """One vLLM tree, ready to be activated.

    Attributes:
        spec: What was asked for: a release, `installed` or a path.
        version: vLLM's version, `unknown` where the tree does not say.
        kind: Where the tree came from.
        root: The folder that contains `vllm/`, named `site-packages`.
        patches: File names of the patches applied, in order.
        digest: SHA-256 over names and contents of the `*.py` under `vllm/`, in hex.
        notes: What people must be told, such as what the patches changed or skipped.
    """

    spec: str
    version: str
    kind: Kind
    root: Path
    patches: tuple[str, ...]
    digest: str
    notes: tuple[str, ...]


def default_cache() -> Path:
    """The folder that holds trees: KVFUZZ_CACHE, or the user's cache directory.

    Raises:
        TreeError: There is no home directory to put it in.
    """
    named = os.environ.get("KVFUZZ_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    try:
        home = Path.home()
    except RuntimeError as error:
        msg = "no home directory for the cache of trees: set KVFUZZ_CACHE to a folder"
        raise TreeError(msg) from error
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "kvfuzz"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "kvfuzz"


def measure(root: Path, *, suffixes: tuple[str, ...] = KEPT_SUFFIXES) -> dict[str, str]:
    """Hash every file of `root/vllm` that has one of the suffixes.

    Links to folders are followed, each real folder once; bytecode is left out.

    Returns:
        SHA-256 in hex by path from `root`, in sorted order.
    """
    hashes: dict[str, str] = {}
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(root / "vllm", followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(s for s in subfolders if s != "__pycache__")
        for name in names:
            if name.endswith(suffixes):
                path = Path(folder, name)
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                hashes[path.relative_to(root).as_posix()] = content
    return dict(sorted(hashes.items()))


def digest_of(hashes: Mapping[str, str]) -> str:
    """One hash for the Python files among the measured ones."""
    lines = [f"{n}\0{h}\n" for n, h in sorted(hashes.items()) if n.endswith(".py")]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_manifest(folder: Path, **content: object) -> None:
    """Write `folder/manifest.json`, which makes an unpacked tree a complete one."""
    content["format_version"] = MANIFEST_FORMAT
    text = json.dumps(content, indent=1, sort_keys=True)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def read_verified(folder: Path, *, remedy: str) -> dict[str, object] | None:
    """Read a kept tree's manifest and compare every file of the tree with it.

    Args:
        folder: Where `manifest.json` and `site-packages` are.
        remedy: What to do if the tree is damaged; ends the error.

    Returns:
        The manifest, or None if no tree was ever completed there.

    Raises:
        TreeError: The manifest cannot be read, or the tree differs from it.
    """
    try:
        text = (folder / "manifest.json").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the manifest of the tree in {folder} cannot be read ({error}): {remedy}"
        raise TreeError(msg) from error
    try:
        manifest = json.loads(text)
        expected = manifest["files"]
        known = manifest["format_version"] == MANIFEST_FORMAT
    except (ValueError, KeyError, TypeError):
        known = False
    if not known or not isinstance(expected, dict):
        msg = f"the manifest of the tree in {folder} is not one of ours: {remedy}"
        raise TreeError(msg)
    found = measure(folder / "site-packages")
    if found != expected:
        names = sorted(
            n for n in found.keys() | expected if found.get(n) != expected.get(n)
        )
        first = names[0]
        how = (
            "is missing"
            if first not in found
            else "was added"
            if first not in expected
            else "was changed"
        )
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        msg = (
            f"the tree in {folder} is not what was unpacked: {first} {how}{more}: "
            f"{remedy}"
        )
        raise TreeError(msg)
    return dict(manifest)


def declare(site_packages: Path, version: str) -> None:
    """Write a dist-info that names vLLM and its version, with the CPU build's suffix.

    Up to 0.27 vLLM chooses its CPU platform by that suffix (see `fuzz.boot`).
    """
    local = version.partition("+")[0] if version != "unknown" else "0.0.0"
    folder = site_packages / f"vllm-{local}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {local}+cpu\n", encoding="utf-8"
    )
    (folder / "INSTALLER").write_text("kvfuzz\n", encoding="utf-8")


@contextlib.contextmanager
def locked(
    cache: Path, name: str, *, progress: Callable[[str], None]
) -> Iterator[None]:
    """Hold the lock of one tree; says so when another process makes us wait.

    Raises:
        TreeError: The cache folder cannot be written.
    """
    import filelock

    path = cache / "locks" / f"{name}.lock"
    with explained(cache):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        while True:
            try:
                lock.acquire(timeout=2)
                break
            except filelock.Timeout:
                progress(f"waiting for another process that prepares {name}")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def staged(target: Path, *, progress: Callable[[str], None]) -> Iterator[Path]:
    """Give an empty folder that becomes `target` in one step when the block succeeds.

    The caller holds the lock of `target`, so that folders left by processes that were
    killed in the block belong to nobody and are removed.

    Raises:
        TreeError: The cache folder cannot be written, or is full.
    """
    with explained(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in target.parent.glob(f".new-{target.name}-*"):
            progress(f"removing {leftover.name}, left by a process that was killed")
            shutil.rmtree(leftover)
        folder = Path(
            tempfile.mkdtemp(prefix=f".new-{target.name}-", dir=target.parent)
        )
    try:
        with explained(target.parent):
            yield folder
            if target.exists():
                target.rename(folder / "replaced")
            (folder / "ready").rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write a folder into a `TreeError`."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full (a release needs about 450 MB while it is "
            "fetched and 60 MB after)",
            errno.EDQUOT: "the disk quota is used up (a release needs about 450 MB "
            "while it is fetched and 60 MB after)",
        }
        reason = reasons.get(error.errno or 0, str(error))
        msg = (
            f"cannot write the cache of trees at {folder}: {reason}. Make room there "
            "or set KVFUZZ_CACHE to a folder that can be written"
        )
        raise TreeError(msg) from error
