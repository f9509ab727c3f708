"""Take the Python files out of a wheel, each checked against the wheel's RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from fuzz.trees.tree import KEPT_SUFFIXES, TreeError

if TYPE_CHECKING:
    from pathlib import Path

UNPACKED_BYTES_MAX = 2**30


def unpack(wheel: Path, version: str, site_packages: Path) -> None:
    """Write the kept files of a wheel below `site_packages`, each checked by RECORD.

    Raises:
        TreeError: The wheel is damaged, or is not one of vLLM's of that version.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            _unpack_members(archive, version, site_packages)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise TreeError(damaged(wheel.name, version, str(error))) from error


def _unpack_members(
    archive: zipfile.ZipFile, version: str, site_packages: Path
) -> None:
    wheel = PurePosixPath(archive.filename or "").name
    record = _read_record(archive, version)
    wanted = {n for n in record if _is_kept(n)}
    members = [m for m in archive.infolist() if _is_kept(m.filename)]
    names = [m.filename for m in members]
    problem = None
    if len(names) != len(set(names)):
        problem = "a file is in it twice"
    elif set(names) != wanted:
        problem = f"{min(set(names) ^ wanted)} is in only one of archive and RECORD"
    elif "vllm/__init__.py" not in wanted:
        problem = "vllm/__init__.py is not in it"
    elif sum(m.file_size for m in members) > UNPACKED_BYTES_MAX:
        problem = f"its Python files are larger than {UNPACKED_BYTES_MAX} bytes"
    if problem:
        raise TreeError(damaged(wheel, version, problem))
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            problem = f"the name {member.filename!r} leads out of the package"
            raise TreeError(damaged(wheel, version, problem))
        content = archive.read(member)
        if _record_hash(content) != record[member.filename]:
            problem = f"{member.filename} does not match its hash in RECORD"
            raise TreeError(damaged(wheel, version, problem))
        target = site_packages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _read_record(archive: zipfile.ZipFile, version: str) -> dict[str, str]:
    """The hash of each file by name, from the one RECORD of the wheel."""
    name = f"vllm-{version}.dist-info/RECORD"
    try:
        text = archive.read(name).decode("utf-8")
        return {row[0]: row[1] for row in csv.reader(text.splitlines()) if row}
    except (KeyError, UnicodeDecodeError, IndexError, csv.Error) as error:
        wheel = PurePosixPath(archive.filename or "").name
        problem = f"{name} is missing or unreadable"
        raise TreeError(damaged(wheel, version, problem)) from error


def _record_hash(content: bytes) -> str:
    """A hash in the form of RECORD files (wheel format, PEP 427)."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + digest.decode().rstrip("=")


def _is_kept(name: str) -> bool:
    return name.startswith("vllm/") and name.endswith(KEPT_SUFFIXES)


def damaged(wheel: str, version: str, problem: str) -> str:
    """The message about a wheel that is not what it should be."""
    return (
        f"the wheel {wheel} of vLLM {version} is damaged: {problem}. Fetch it again "
        f"(python -m fuzz.trees fetch {version}); if that does not help, the index or "
        "mirror that pip uses serves a damaged file (pip config list)"
    )
