"""Saved faults on disk: `<store>/<ID>/case.json` and the `repro.py` made from it.

case.json is the truth. It is read strictly and never trusted: what is damaged, hostile
or from the future is refused with the reason, and the rest of the store still works.
Writes are atomic and under a lock; of one fault the smallest case stays.
"""

import difflib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import filelock
import msgspec

from invariants.model import (
    CaseError,
    Invariant,
    Violation,
    digest,
    encode,
)
from reproducers.case_file import (
    ID_PATTERN,
    FoundOn,
    FutureCase,
    Refused,
    Saved,
    check_id,
    parsed,
)
from reproducers.flatten import ScriptError
from reproducers.script import json_text, script

STORE = Path(__file__).parent / "cases"

LOCK_TIMEOUT_S = 60.0
# A case is a few hundred characters; what is much longer was not written by `save`.
CASE_BYTES_MAX = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What `save` left.

    Attributes:
        folder: The fault's, ``<store>/<ID>``.
        before_characters: Length of the case that was there before, in canonical JSON;
            0 when there was none that could be used.
    """

    folder: Path
    before_characters: int


def _not_there(store: Path, id_: str) -> CaseError:
    hint = _suggestion(store, id_) or "; python -m reproducers list shows what there is"
    return CaseError(f"no saved case {id_!r} in {store}{hint}")


def _suggestion(store: Path, id_: str) -> str:
    """The end of an error about an ID: what may have been meant, "" if nothing."""
    ids = [name for name in _names(store) if ID_PATTERN.fullmatch(name) and name != id_]
    near = difflib.get_close_matches(id_, ids, n=3, cutoff=0.8)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _names(store: Path) -> list[str]:
    if not store.is_dir():
        return []
    return sorted(each.name for each in store.iterdir() if each.name[0] not in "._")


def read(store: Path, id_: str) -> Saved:
    """Read one saved case strictly.

    Raises:
        CaseError: When the ID is not one, is not in the store, or its file cannot be
            used; says why.
    """
    try:
        check_id(id_)
    except CaseError as error:
        raise CaseError(f"{error}{_suggestion(store, id_)}") from error
    folder = store / id_
    if not folder.is_symlink() and not folder.exists():
        raise _not_there(store, id_)
    saved = parsed(_file_text(folder))
    if saved.id != id_:
        raise CaseError(
            f"the folder is named {id_!r}, and its case.json is {saved.id!r}"
        )
    return saved


def _file_text(folder: Path) -> str:
    path = folder / "case.json"
    if folder.is_symlink() or path.is_symlink():
        raise CaseError("a symbolic link; the store holds real folders and files only")
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise CaseError("case.json is not a regular file")
        if status.st_size > CASE_BYTES_MAX:
            raise CaseError(
                f"case.json has {status.st_size} bytes; at most {CASE_BYTES_MAX} "
                "are allowed"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"case.json cannot be read: {error}") from error


def entries(store: Path) -> Iterator[Saved | Refused]:
    """Everything in the store by name; what cannot be used comes with its reason."""
    for name in _names(store):
        try:
            yield read(store, name)
        except CaseError as error:
            future = isinstance(error, FutureCase)
            yield Refused(id=name, reason=str(error), future=future)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    store.mkdir(parents=True, exist_ok=True)
    path = store / ".lock"
    try:
        with filelock.FileLock(path, timeout=LOCK_TIMEOUT_S):
            yield
    except filelock.Timeout as error:
        raise CaseError(
            f"{path} was held by another process for {LOCK_TIMEOUT_S:.0f} s; "
            "end that process and try again"
        ) from error


def save(
    *,
    store: Path,
    invariant: Invariant,
    violation: Violation,
    case: object,
    found_on: FoundOn,
    fix: str,
) -> Kept:
    """Save a fault's case and its stand-alone script, unless a smaller case is there.

    Safe to call from several processes at once. A process killed in the middle leaves
    what was there before.

    Args:
        store: Folder of saved cases, made when missing.
        invariant: The law that was broken, for its statement and severity.
        violation: What was seen, on `case`.
        case: The target's `Case` value.
        found_on: The tree and the run.
        fix: What `verify_fix` said.

    Raises:
        CaseError: When what is there was written by a newer kvfuzz or is a link, or the
            lock cannot be had.
        ScriptError: When the case was saved and its script cannot be generated.
    """
    saved = Saved(
        format_version=1,
        id=violation.key.id,
        target=violation.target,
        invariant=violation.invariant,
        origin=violation.origin,
        site=violation.site,
        exception=violation.exception,
        statement=invariant.statement,
        severity=invariant.severity,
        message=violation.message,
        evidence=dict(violation.evidence),
        case=msgspec.json.decode(encode(case)),
        case_digest=digest(case),
        found_on=found_on,
        fix=fix,
        found=datetime.now(UTC).date().isoformat(),
    )
    folder = store / saved.id
    with _locked(store):
        _remove_leftovers(store)
        if folder.is_symlink():
            raise CaseError(f"{folder} is a symbolic link; remove it and run again")
        exists = folder.exists()
        old = _usable(folder, kind=type(case)) if exists else None
        _write(folder, saved if old is None else _better(old, saved))
    return Kept(folder=folder, before_characters=old.size[0] if old else 0)


def rewrite(store: Path, id_: str) -> Path:
    """Generate a saved case's script anew from its case.json; its path.

    Raises:
        CaseError: When the case cannot be used.
        ScriptError: When the script cannot be generated.
    """
    with _locked(store):
        _write(store / id_, read(store, id_))
    return store / id_ / "repro.py"


def _usable(folder: Path, *, kind: type[object]) -> Saved | None:
    """The case that is there, None when it is damaged or another fault's.

    Raises:
        CaseError: When a newer kvfuzz wrote it.
    """
    try:
        old = parsed(_file_text(folder))
        old.typed_case(kind)
    except FutureCase as error:
        raise CaseError(f"{folder / 'case.json'} was kept: {error}") from error
    except CaseError:
        return None
    return old if old.id == folder.name else None


def _better(old: Saved, new: Saved) -> Saved:
    """Which of the case that is there and a new one to keep."""
    if new.size < old.size:
        return replace(new, found=old.found)
    if new.case == old.case and new.fix != old.fix:
        return replace(old, fix=new.fix)
    return old


def _write(folder: Path, saved: Saved) -> None:
    """Write both files; a new folder appears at once, an old one file by file."""
    failure: ScriptError | None = None
    files = {"case.json": _json_text(saved)}
    try:
        files["repro.py"] = script(saved)
    except ScriptError as error:
        failure = ScriptError(f"{folder / 'case.json'} was saved; no repro.py: {error}")
    if folder.exists():
        for name, content in files.items():
            _write_synced(folder / f".{name}.tmp", content)
        for name in files:
            (folder / f".{name}.tmp").replace(folder / name)
    else:
        temporary = folder.with_name(f".{folder.name}.tmp")
        temporary.mkdir()
        for name, content in files.items():
            _write_synced(temporary / name, content)
        temporary.rename(folder)
    if failure is not None:
        raise failure


def _json_text(saved: Saved) -> str:
    return json_text(msgspec.json.decode(encode(saved))) + "\n"


def _write_synced(path: Path, content: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove_leftovers(store: Path) -> None:
    """Remove what killed writers left; the lock says that none is at work."""
    for leftover in store.glob(".*.tmp"):
        shutil.rmtree(leftover)
    for leftover in store.glob("*/.*.tmp"):
        leftover.unlink()


def remove(store: Path, id_: str) -> None:
    """Remove an entry of the store, usable or not.

    Raises:
        CaseError: When there is none of that name.
    """
    if id_ not in _names(store):
        raise _not_there(store, id_)
    entry = store / id_
    with _locked(store):
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
        else:
            shutil.rmtree(entry)
