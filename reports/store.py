"""Where reports lie: a folder for each run, its renderings, a link to the latest.

Files appear whole or not at all. The link moves when a run begins, so that no gate
reads an older report in place of one whose run died.
"""

import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reports.decide import decide
from reports.document import FORMAT, FORMAT_VERSION, Report
from reports.events import RunStarted, read_events
from reports.heard import disagreements
from reports.junit import junit_xml
from reports.markdown import markdown
from reports.report import fold


class ReportError(Exception):
    """A report that is not there or cannot be used; says what to do."""


def home() -> Path:
    """The folder of runs and of the link ``latest``.

    ``KVFUZZ_REPORTS`` moves it; without it, this package's own folder in the checkout.
    """
    moved = os.environ.get("KVFUZZ_REPORTS")
    return Path(moved).absolute() if moved else Path(__file__).parent


def new_run_folder() -> Path:
    """Make the folder of a run that begins, and point ``latest`` at it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = home() / "runs" / f"{stamp}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True)
    _point_latest(folder)
    return folder


def finish(run_folder: Path) -> Report:
    """Fold a run's events, write every rendering into its folder, give the report.

    ``latest`` comes to point at the folder when it is one of this home's runs.
    """
    report = fold(read_events(run_folder))
    _write_renderings(report, run_folder)
    if run_folder.absolute().parent == home() / "runs":
        _point_latest(run_folder.absolute())
    return report


def load(path: Path) -> Report:
    """Read a report: a ``report.json``, or the folder of a run.

    The folder of a run without a report (it goes on, or its controller died) is folded
    from its events; nothing is written.

    Raises:
        ReportError: When there is nothing, or nothing that this version can read.
    """
    if path.is_dir():
        if (path / "report.json").is_file():
            return _decoded(path / "report.json")
        if any(path.glob("*.jsonl")):
            return fold(read_events(path))
        raise ReportError(
            f"{path} holds neither report.json nor events (*.jsonl): give the folder "
            "of a run, or run pytest fuzz/ first"
        )
    if not path.is_file():
        raise ReportError(
            f"no report at {path}: run pytest fuzz/ first, see why python -m reports "
            "merge made none, or give the path of a report.json or of a run's folder"
        )
    return _decoded(path)


def located(name: str | None) -> Path:
    """The path that a person means: the latest run, a run's id, or a path."""
    if name is None:
        return home() / "latest"
    run = home() / "runs" / name
    by_id = name == run.name and run.is_dir()
    return run if by_id and not Path(name).exists() else Path(name)


def merge(folders: Sequence[Path], *, out: Path | None) -> tuple[Report, Path]:
    """Make one run's folder of the runs of several machines.

    Its events are theirs, so that it can be shown, gated and merged like any other.

    Args:
        folders: Folders of runs, or the ``report.json`` in them.
        out: The new folder, to be made here; None for a new one among the runs.

    Raises:
        ReportError: When these are not parts of one run; nothing is written.
    """
    sources = [_events_folder(path) for path in folders]
    starts: list[RunStarted] = []
    for source in sources:
        own = [each for each in read_events(source) if isinstance(each, RunStarted)]
        if not own:
            raise ReportError(
                f"{source} cannot be merged: it has no run-started event, so nobody "
                "knows which shards it was to run"
            )
        starts += own
    reasons = disagreements(starts)
    if reasons:
        raise ReportError(
            "these are not parts of one run: " + "; ".join(reasons) + ". Give every "
            "machine the same command, tree and --seed, and its own --shard-id"
        )
    if out is None:
        target = new_run_folder()
    elif out.exists():
        raise ReportError(f"{out} exists already: name a folder to be made")
    else:
        out.mkdir(parents=True)
        target = out
    for number, source in enumerate(sources):
        for path in sorted(source.glob("*.jsonl")):
            write_whole(target / f"machine{number}-{path.name}", path.read_bytes())
    return finish(target), target


def _events_folder(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    if not path.exists() or not any(folder.glob("*.jsonl")):
        raise ReportError(
            f"{path} cannot be merged: expected the folder of a run with its events "
            "(*.jsonl), as reports/runs/<run> has them"
        )
    return folder


def _decoded(path: Path) -> Report:
    """Read a report.json strictly.

    The kind and the version are looked at first, for their own messages.
    """
    content = path.read_bytes()
    try:
        stamp = msgspec.json.decode(content, type=_Stamp)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReportError(
            f"{path} is damaged, or no report of this project: {error}"
        ) from error
    if stamp.format != FORMAT:
        raise ReportError(
            f"{path} is no report of this project: its format is {stamp.format!r}, "
            f"expected {FORMAT!r}"
        )
    if stamp.format_version != FORMAT_VERSION:
        raise ReportError(
            f"{path} has format version {stamp.format_version}, and this revision "
            f"reads {FORMAT_VERSION}: use the revision that wrote it"
        )
    try:
        report = msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReportError(f"{path} is damaged: {error}") from error
    known = {each.id for each in report.findings if each.standing != "new"}
    strays = known - {each.id for each in report.ledger}
    if strays:
        raise ReportError(
            f"{path} is damaged: its ledger does not know {', '.join(sorted(strays))}, "
            "which it calls known"
        )
    return report


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a document says it is."""

    format: str
    format_version: int


def _write_renderings(report: Report, folder: Path) -> None:
    decision = decide(report, strict=report.strict)
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2)
    write_whole(folder / "report.json", encoded + b"\n")
    write_whole(folder / "report.md", markdown(report, decision).encode())
    write_whole(folder / "junit.xml", junit_xml(report, decision))


def _point_latest(folder: Path) -> None:
    """Make ``latest`` a link to a folder below ``runs``, in one step."""
    latest = home() / "latest"
    if latest.is_dir() and not latest.is_symlink():
        raise ReportError(
            f"{latest} is a folder and not a link to the latest run: remove it"
        )
    link = home() / "runs" / f".latest.{secrets.token_hex(4)}"
    link.symlink_to(Path("runs") / folder.name)
    link.replace(latest)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that readers see all of it or the one before."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
