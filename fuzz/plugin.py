"""The pytest plugin: options, shards, xdist, and the report at the end.

It is armed only when `fuzz/` is among what pytest was asked to run. The controller
resolves the tree and folds the events; workers run shards and write events to files.
State lives in `config.stash`; nothing needs the controller to survive.
"""

import argparse
import difflib
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.mark import expression

from fuzz import rooms
from fuzz.campaign import Campaign, NewFaults, Run, TargetAbsent, Worker
from fuzz.controller import FINDING, SAVED_FAULTS, Controller, LedgerUnusable
from fuzz.profiles import PROFILES, Profile, run_seed
from fuzz.trees import Tree, TreeError, resolve
from reports import store
from reports.events import EventLog, Problem

WORKER = pytest.StashKey[Worker]()
RUN_FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `pytest fuzz/`; the same names work in every command.

    ``--strict`` is pytest's own; here it makes findings on contract input break a run.
    """
    group = parser.getgroup("kvfuzz", "fuzzing vLLM's KV-cache code")
    group.addoption(
        "--vllm",
        metavar="TREE",
        help="what is under test: a release (0.20.1), 'installed', or the path of a "
        "checkout or unpacked tree; default: $KVFUZZ_VLLM or the newest verified one",
    )
    group.addoption(
        "--vllm-patches",
        metavar="DIR",
        type=Path,
        help="apply a patch series (DIR/series or DIR/*.patch) to a copy of the tree",
    )
    group.addoption(
        "--profile",
        choices=sorted(PROFILES),
        default="quick",
        help="how much to run (default: %(default)s)",
    )
    group.addoption("--seed", type=int, help="repeat the run of this seed")
    group.addoption(
        "--cases",
        type=_positive,
        help="cases of each property, instead of the profile's",
    )
    group.addoption(
        "--minutes", type=_minutes, help="time budget of the soak profile (default: 60)"
    )
    group.addoption(
        "--num-shards",
        type=_positive,
        default=1,
        help="split the run over this many machines; see --shard-id",
    )
    group.addoption(
        "--shard-id", type=int, default=0, help="this machine's part, from 0"
    )
    group.addoption(
        "--targets",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="a folder of targets of your own, laid out like this repository",
    )
    group.addoption(
        "--replay",
        metavar="ID",
        action="append",
        default=[],
        help="only replay this saved fault",
    )


def _positive(text: str) -> int:
    """A count of 1 or more.

    Raises:
        argparse.ArgumentTypeError: Otherwise; pytest shows it with the option's name.
    """
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no count: give a whole number, 1 or more"
        )
    return int(text)


def _minutes(text: str) -> float:
    """A length of time that ends.

    Raises:
        argparse.ArgumentTypeError: Otherwise; pytest shows it with the option's name.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no length of time: give minutes above 0, such as 90 or 0.5"
        )
    return value


def _is_armed(config: pytest.Config) -> bool:
    """Whether fuzz/ is among what pytest was asked to run."""
    if config.option.collectonly or config.option.help or config.option.version:
        return False
    room = Path(__file__).parent
    folders = [
        Path(config.invocation_params.dir, arg.split("::")[0]).resolve()
        for arg in config.args
    ]
    return any(
        folder.is_relative_to(room) or room.is_relative_to(folder) for folder in folders
    )


def _chosen_profile(config: pytest.Config) -> Profile:
    profile = PROFILES[config.getoption("--profile")]
    cases, minutes = config.getoption("--cases"), config.getoption("--minutes")
    if minutes is not None:
        if profile.minutes is None:
            raise pytest.UsageError(
                f"--minutes is the budget of --profile soak; {profile.name} runs a "
                "fixed number of cases (see --cases)"
            )
        profile = replace(profile, minutes=minutes)
    return profile if cases is None else replace(profile, cases=cases)


def _check_shards(config: pytest.Config, profile: Profile) -> None:
    count, part = config.getoption("--num-shards"), config.getoption("--shard-id")
    if count == 1 and part != 0:
        raise pytest.UsageError(
            f"--shard-id {part} is one of several machines' parts: say with "
            "--num-shards how many share the run"
        )
    if not 0 <= part < count:
        raise pytest.UsageError(
            f"--shard-id {part} is not a part of --num-shards {count}; expected "
            f"0 to {count - 1}"
        )
    if count > profile.shards:
        raise pytest.UsageError(
            f"--num-shards {count}: the profile {profile.name} has {profile.shards} "
            "shards for each property; use at most as many machines"
        )


def _check_selection(config: pytest.Config) -> None:
    """Refuse what pytest would only refuse in the midst of a run, with a traceback."""
    # Its own exception up to pytest 8.
    refused = getattr(expression, "ParseError", SyntaxError)
    for option, text in (("-k", config.option.keyword), ("-m", config.option.markexpr)):
        try:
            if text:
                expression.Expression.compile(text)
        except refused as error:
            raise pytest.UsageError(
                f"{option} {text!r}: {error}; give words joined by 'and', 'or' and "
                f"'not', such as {option} 'page_size or canary'"
            ) from error


def _check_replays(config: pytest.Config) -> None:
    known = config.stash[SAVED_FAULTS].ids()
    for fault_id in config.getoption("--replay"):
        if fault_id in known:
            continue
        close = difflib.get_close_matches(fault_id, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else "."
        raise pytest.UsageError(
            f"--replay {fault_id[:80]!r}: no such saved fault{meant} `python -m "
            "reproducers list` shows what is saved; an ID looks like page-size-0a1b2c3d"
        )


def _refuse(folder: Path, where: str, error: Exception) -> NoReturn:
    """End a run that cannot begin; its report says why."""
    told = f"kvfuzz: {error}"
    try:
        log = EventLog(folder / "events-controller.jsonl")
        log.write(Problem(where=where, message=str(error)))
        log.close()
        store.finish(folder)
    except (store.ReportError, OSError) as unwritten:
        told += f"; the report of this run cannot be written either: {unwritten}"
    pytest.exit(told, returncode=2)


def _resolved(config: pytest.Config, folder: Path) -> Tree:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    try:
        return resolve(
            config.getoption("--vllm"),
            patches=config.getoption("--vllm-patches"),
            progress=None if reporter is None else reporter.write_line,
        )
    except TreeError as error:
        _refuse(folder, "tree", error)


def _new_run_folder() -> Path:
    try:
        return store.new_run_folder()
    except (store.ReportError, OSError) as error:
        pytest.exit(
            f"kvfuzz: no folder for the report of this run below {store.home()}: "
            f"{error}. KVFUZZ_REPORTS names a folder that can be written",
            returncode=2,
        )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open the run's folder, check the options; a worker takes the controller's run."""
    worker_input = getattr(config, "workerinput", None)
    own_folders = config.getoption("--targets")
    for folder in own_folders:
        config.args += map(str, sorted((folder / "fuzz").glob("test_*.py")))
    armed = _is_armed(config)
    if armed and worker_input is None:
        # Before any check: a run that cannot begin must not leave an older one the
        # latest.
        config.stash[RUN_FOLDER] = _new_run_folder()
    for folder in own_folders:
        try:
            rooms.add_folder(folder)
        except rooms.RoomsError as error:
            raise pytest.UsageError(str(error)) from error
    if not armed:
        return
    profile = _chosen_profile(config)
    _check_shards(config, profile)
    _check_selection(config)
    _check_replays(config)
    # Shards are few and long: hand them out one at a time.
    if getattr(config.option, "maxschedchunk", 1) is None:
        config.option.maxschedchunk = 1
    if worker_input is not None:
        run = Run.from_json(worker_input["kvfuzz"])
        _add_worker(config, run, f"{worker_input['workerid']}-{os.getpid()}")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Tests of `--targets` outside the repository get the file into their ids.

    pytest would call all of them ``::test_wired[shard0]``: it knows no folder that such
    a file, named on the command line, is relative to.
    """
    if module_path.is_relative_to(parent.config.rootpath):
        return None
    module: pytest.Module = pytest.Module.from_parent(
        parent, path=module_path, nodeid=module_path.as_posix()
    )
    return module


def _add_worker(config: pytest.Config, run: Run, name: str) -> None:
    saved = config.stash[SAVED_FAULTS]
    config.stash[WORKER] = Worker(run, name=name, save=saved.save, cure=saved.cure)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """In the controller: resolve the tree and describe the run to every process."""
    config = session.config
    if not _is_armed(config) or hasattr(config, "workerinput"):
        return
    profile = _chosen_profile(config)
    folder = config.stash[RUN_FOLDER]
    tree = _resolved(config, folder)
    seed = run_seed(profile, given=config.getoption("--seed"))
    try:
        ledger = config.stash[SAVED_FAULTS].ledger(tree.version)
    except LedgerUnusable as error:
        _refuse(folder, "ledger", error)
    silenced = {record.id for record in ledger if record.expected != "fixed"}
    run = Run(
        id=folder.name,
        folder=folder,
        profile=profile,
        seed=seed,
        tree=tree,
        strict=bool(getattr(config.option, "strict", False)),
        target_folders=tuple(config.getoption("--targets")),
        silenced=frozenset(silenced),
        workers=len(getattr(config.option, "tx", None) or [1]),
    )
    controller = Controller(config, run, saved=config.stash[SAVED_FAULTS])
    config.pluginmanager.register(controller, "kvfuzz-controller")
    _add_worker(config, run, f"main-{os.getpid()}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each shard, saved fault and control; nothing heavy is imported."""
    config = metafunc.config
    if "campaign" in metafunc.fixturenames:
        profile = _chosen_profile(config)
        count, part = config.getoption("--num-shards"), config.getoption("--shard-id")
        indices = [index for index in range(profile.shards) if index % count == part]
        ids = [f"shard{index}" for index in indices]
        metafunc.parametrize("campaign", indices, ids=ids, indirect=True)
    if "saved" in metafunc.fixturenames:
        metafunc.parametrize("saved", config.stash[SAVED_FAULTS].ids())
    if "control" in metafunc.fixturenames:
        metafunc.parametrize("control", ("canary", *rooms.discover()))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Saved faults first, then controls, then the search; `--replay` keeps its own."""
    # Without saved faults pytest would show an empty parameter set as a skip.
    items[:] = [item for item in items if not item.name.endswith("[NOTSET]")]
    wanted = config.getoption("--replay")
    if wanted:
        kept = {f"test_saved[{fault_id}]" for fault_id in wanted}
        others = [item for item in items if item.name not in kept]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.name in kept]
    order = ("test_saved", "test_control")

    def place(item: pytest.Item) -> int:
        name = item.name.split("[")[0]
        return order.index(name) if name in order else len(order)

    items.sort(key=place)


@pytest.fixture
def worker(pytestconfig: pytest.Config) -> Worker:
    """This process's share of the run."""
    return pytestconfig.stash[WORKER]


@pytest.fixture
def campaign(request: pytest.FixtureRequest, worker: Worker) -> Campaign:
    """One shard of a property."""
    shards = sum(
        1
        for item in request.session.items
        if isinstance(item, pytest.Function) and "campaign" in item.fixturenames
    )
    return Campaign(worker, index=request.param, shards=shards)


@pytest.fixture
def replay_saved(
    request: pytest.FixtureRequest, worker: Worker, pytestconfig: pytest.Config
) -> Any:
    """A function that replays a saved fault and fails when that is news."""

    def replay(fault_id: str) -> None:
        replayed = pytestconfig.stash[SAVED_FAULTS].replay(worker, fault_id)
        worker.write(replayed)
        breaks = replayed.origin == "wired" or worker.run.strict
        news = replayed.outcome == "ERRORED" or (
            replayed.outcome == "REPRODUCED"
            and fault_id not in worker.run.silenced
            and breaks
        )
        if replayed.outcome == "NOT_APPLICABLE":
            pytest.skip(replayed.message)
        if news:
            request.node.user_properties.append(FINDING)
            pytest.fail(f"{replayed.outcome}: {replayed.message}", pytrace=False)

    return replay


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """New faults fail their test briefly; an absent target skips it by name."""
    try:
        return (yield)
    except TargetAbsent as error:
        absent: str | None = f"absent in this tree: {error}"
        found = ""
    except NewFaults as error:
        absent = None
        found = str(error)
    if absent is not None:
        pytest.skip(absent)
    pyfuncitem.user_properties.append(FINDING)
    pytest.fail(found, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End this process's children."""
    worker = session.config.stash.get(WORKER, None)
    if worker is not None:
        worker.close()
