"""Fetch a release of vLLM with pip, and keep its Python files.

The wheel is checked against pinned hashes and against its own RECORD; a tree appears in
the cache in one rename, under a lock, so that any number of processes may ask at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from fuzz.trees.tree import (
    Tree,
    TreeError,
    declare,
    digest_of,
    locked,
    measure,
    read_verified,
    staged,
    write_manifest,
)
from fuzz.trees.wheel import damaged, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The newest release that this project was verified on.
DEFAULT_RELEASE = "0.33.0"

RELEASE_PATTERN = re.compile(r"\d+\.\d+\.\d+(rc\d+)?(\.post\d+)?")

# SHA-256 of the linux x86-64 wheels that were seen and tested. Other releases are held
# to their own RECORD only.
PINNED_WHEELS = {
    "0.20.1": "11907857c94c226caf82ada92ab09b1e0dbf538b5b80a93aed74be29e861020c",
    "0.24.0": "2d2831aeba311292250df0132dbc4d8e9f42c654536eaec48e6fe58acb1822cf",
    "0.26.0": "adb1e4c9b46d0dfdb094121ae5aad670a42412dd813ed4e5db069ed6a15006de",
    "0.28.0": "addb0ffdaafd8155d75e9b3f5ddb3da28fdee9e8a7097ede91f7db2e9e1a3889",
    "0.30.0": "ef52ee58c410ead0b8afb190838fa4cbcb52075596f67862a03859d984966ac4",
    "0.33.0": "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
}

# Tags of vLLM's linux wheels over the releases; only Python files are taken from them,
# so that they serve on any machine and any Python.
WHEEL_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_34_x86_64",
    "manylinux_2_35_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


def release_tree(
    version: str, *, cache: Path, repair: bool, progress: Callable[[str], None]
) -> Tree:
    """Give the tree of a release, fetched on first use.

    Args:
        version: A release's number, matching `RELEASE_PATTERN`.
        cache: The folder that holds trees.
        repair: Fetch anew if the kept tree is damaged, instead of refusing it.
        progress: Told what happens when it takes time.

    Raises:
        TreeError: The release cannot be fetched, is damaged, or the kept tree is.
    """
    folder = cache / "trees" / version
    remedy = (
        f"run `python -m fuzz.trees fetch {version}` to fetch it anew (to test an edit "
        "of your own, copy the tree and pass the copy's path)"
    )
    manifest = None
    try:
        manifest = read_verified(folder, remedy=remedy)
    except TreeError as damage:
        if not repair:
            raise
        progress(f"fetching vLLM {version} anew, for {damage}")
    if manifest is None:
        with locked(cache, f"vllm-{version}", progress=progress):
            try:
                manifest = read_verified(folder, remedy=remedy)
            except TreeError:
                if not repair:
                    raise
            if manifest is None:
                with staged(folder, progress=progress) as staging:
                    _fetch(version, staging, progress=progress)
                manifest = read_verified(folder, remedy=remedy)
    if manifest is None:
        msg = f"the tree {folder} was removed while it was being read: {remedy}"
        raise TreeError(msg)
    files = manifest["files"]
    assert isinstance(files, dict)
    return Tree(
        spec=version,
        version=version,
        kind="release",
        root=folder / "site-packages",
        patches=(),
        digest=digest_of(files),
        notes=(),
    )


def _fetch(version: str, staging: Path, *, progress: Callable[[str], None]) -> None:
    """Download and unpack a release into `staging/ready`."""
    wheel = _download(version, staging / "download", progress=progress)
    progress(f"checking {wheel.name}")
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    expected = PINNED_WHEELS.get(version)
    if expected is not None and found != expected:
        msg = (
            f"the wheel of vLLM {version} that pip got ({wheel.name}) has SHA-256 "
            f"{found}, and {expected} was expected: the index or a mirror serves "
            "another file under that name. Find out which (pip config list); if the "
            "release was really rebuilt, update PINNED_WHEELS in fuzz/trees/release.py"
        )
        raise TreeError(msg)
    ready = staging / "ready"
    site_packages = ready / "site-packages"
    site_packages.mkdir(parents=True)
    unpack(wheel, version, site_packages)
    declare(site_packages, version)
    write_manifest(
        ready,
        version=version,
        wheel=wheel.name,
        wheel_sha256=found,
        files=measure(site_packages),
    )


def _download(version: str, folder: Path, *, progress: Callable[[str], None]) -> Path:
    """Let pip download the wheel, telling how far it is every two seconds."""
    folder.mkdir()
    scratch = folder / "pip"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", f"vllm=={version}"]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=1"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--no-input"]
    command += [f"--dest={folder}", "--python-version=3.12"]
    command += [f"--platform={tag}" for tag in WHEEL_PLATFORMS]
    progress(f"downloading vLLM {version} (a few hundred MB, once)")
    environment = os.environ | {"TMPDIR": str(scratch), "LC_ALL": "C"}
    # A require-virtualenv or user setting of the person's pip does not apply here.
    environment |= {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            _wait_for(pip, folder, progress=progress)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        log_text = log_path.read_text(encoding="utf-8", errors="replace")
        raise TreeError(_explain_pip(version, log_text))
    return wheels[0]


def _wait_for(
    pip: subprocess.Popen[bytes], folder: Path, *, progress: Callable[[str], None]
) -> None:
    started = time.monotonic()
    while True:
        try:
            pip.wait(timeout=2)
        except subprocess.TimeoutExpired:
            size = max((_size_bytes(p) for p in folder.rglob("*")), default=0)
            seconds = time.monotonic() - started
            progress(f"downloading: {size // 2**20} MB after {seconds:.0f} s")
        else:
            return


def _size_bytes(path: Path) -> int:
    """The size of a file that may have been moved away in the meantime."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _explain_pip(version: str, log: str) -> str:
    """Say in one line what kept pip from downloading, and what to do."""
    ending = " | ".join(line for line in log.splitlines()[-3:] if line.strip())
    if "No module named pip" in log:
        return (
            f"vLLM {version} is fetched with pip, and {sys.executable} has none: run "
            f"`{sys.executable} -m ensurepip`"
        )
    if "No space left on device" in log:
        return (
            f"the disk is full: vLLM {version} needs about 450 MB while it is fetched. "
            "Make room or set KVFUZZ_CACHE to a folder on another disk"
        )
    if "is invalid" in log or "BadZipFile" in log or "unexpected EOF" in log:
        return damaged("that pip got", version, ending)
    known = re.search(r"\(from versions: (.*?)\)", log, flags=re.DOTALL)
    if known and known[1].strip() not in ("", "none"):
        newest = ", ".join(known[1].replace("\n", " ").split(", ")[-5:])
        return (
            f"there is no release {version} of vLLM for linux x86-64 in the package "
            f"index; the newest there: {newest}. Name one of the releases"
        )
    network = ("connection broken", "ConnectionError", "Name or service", "resolve")
    if any(word in log for word in (*network, "timed out", "ProxyError", "SSLError")):
        return (
            f"vLLM {version} cannot be downloaded, for the package index is not "
            f"reached: check the network and pip's settings (pip config list), or put "
            f"the wheel in a folder and set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER. pip "
            f"said: {ending}"
        )
    return (
        f"pip found no vLLM {version} where it looks: check the release's number and "
        f"pip's settings (pip config list). pip said: {ending}"
    )
