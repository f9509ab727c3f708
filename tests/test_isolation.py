"""Isolation, on a target that does everything a case can do to its process.

The tree is a toy of a few lines, so that starting costs what torch costs and no more.
Processes are recognised by a mark in their environment, whoever their parent is.
"""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz._protocol import Forked, Request
from fuzz._watch import STDERR_KEPT_BYTES, Child, telling_lines
from fuzz.edits import Replacement, SourceEdit
from fuzz.isolation import CASES_PER_CHILD, Isolation, IsolationError
from fuzz.runtime import Runtime
from fuzz.trees import Tree, resolve
from invariants.model import Death
from reproducers import standalone
from tests.toys import TOYS, alive, case, marked, toy_tree, wait_until


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return toy_tree(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def shared(tree: Tree) -> Iterator[Isolation]:
    with Isolation(tree=tree, runtime=Runtime(), target_folders=(TOYS,)) as isolation:
        yield isolation


@pytest.fixture
def isolation(shared: Isolation) -> Iterator[Isolation]:
    yield shared
    assert shared.take_culprits() == ()


def blocks(result: str | Death) -> int:
    assert isinstance(result, str), result
    count: int = json.loads(result)["blocks"]
    return count


def text(result: str | Death) -> str:
    assert isinstance(result, str), result
    said: str = json.loads(result)["text"]
    return said


def pids(isolation: Isolation) -> tuple[int, int]:
    """The ids of the present child and of its zygote."""
    child, zygote, *_ = map(int, text(isolation.run("toy", case("inspect"))).split())
    return child, zygote


def test_a_child_runs_many_cases_and_a_fresh_one_only_its_own(
    isolation: Isolation,
) -> None:
    first, zygote = pids(isolation)
    assert pids(isolation) == (first, zygote)
    fresh = isolation.run("toy", case("inspect"), fresh=True)
    assert text(fresh).split()[0] != str(first)
    assert text(fresh).split()[1] == str(zygote)
    for _ in range(CASES_PER_CHILD):
        isolation.run("toy", case())
    assert pids(isolation) != (int(text(fresh).split()[0]), zygote)


def test_outcome_tells_what_ran_before(isolation: Isolation) -> None:
    assert isolation.outcome("toy", case(), fresh=True).earlier == ()
    (earlier,) = isolation.outcome("toy", case(tokens=33)).earlier
    assert earlier.case == case()


@pytest.mark.parametrize(
    ("deed", "cause", "detail"),
    [
        ("segfault", "signal 11", "Segmentation fault"),
        ("segfault", "signal 11", 'File "targets/toy.py", line'),
        ("exit", "exit 3", "about to leave"),
        ("system_exit", "exit 4", ""),
        ("hang", "timed out", "after 3 s"),
        ("hang_in_c", "timed out", "after 3 s"),
        ("hog", "memory limit", "above 512 MiB resident"),
    ],
)
def test_a_death_names_its_cause(
    isolation: Isolation, deed: str, cause: str, detail: str
) -> None:
    began = time.monotonic()
    death = isolation.run("toy", case(deed))
    assert isinstance(death, Death)
    assert death.cause == cause
    assert detail in death.detail
    assert time.monotonic() - began < 15
    assert blocks(isolation.run("toy", case())) == 3


def test_a_death_reads_the_same_each_time(isolation: Isolation) -> None:
    first = isolation.run("toy", case("segfault"))
    assert first == isolation.run("toy", case("segfault"), fresh=True)
    assert isinstance(first, Death)
    assert str(Path.cwd()) not in first.detail


def test_only_the_case_that_dies_is_dead(isolation: Isolation) -> None:
    results = isolation.run_many(
        "toy", [case(tokens=16), case("segfault"), case(tokens=32), case("exit")]
    )
    assert blocks(results[0]) == 1
    assert isinstance(results[1], Death)
    assert blocks(results[2]) == 2
    assert isinstance(results[3], Death)


def test_an_error_of_the_target_is_no_death(isolation: Isolation) -> None:
    with pytest.raises(IsolationError, match="ünïcode") as raised:
        isolation.run("toy", case("error"))
    assert "LookupError" in str(raised.value)
    assert "in _error" in str(raised.value)
    assert case("error") in str(raised.value)
    # What it left of its process is not trusted.
    assert isolation.outcome("toy", case()).earlier == ()


@pytest.mark.parametrize(
    "bad", ["{", '{"tokens": 1}', case().replace("divide", "conquer")]
)
def test_a_bad_case_is_refused(isolation: Isolation, bad: str) -> None:
    with pytest.raises(IsolationError, match="not a valid Case"):
        isolation.run("toy", bad)


@pytest.mark.parametrize("name", ["../toy", "os", "toy.run", "", "no_such_target"])
def test_a_name_that_is_no_target_is_never_imported(
    isolation: Isolation, name: str
) -> None:
    with pytest.raises(IsolationError, match="no target"):
        isolation.run(name, case())
    assert blocks(isolation.run("toy", case())) == 3


def test_noise_and_size_do_not_disturb_results(isolation: Isolation) -> None:
    assert text(isolation.run("toy", case("noise"))) == ""
    assert text(isolation.run("toy", case("large"))) == "ü\n😀" * 2_000_000
    assert blocks(isolation.run("toy", case())) == 3


def test_an_answer_may_come_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    stderr_fd, their_stderr_fd = os.pipe()
    forked = Forked(pid=os.getpid(), timeout_s=60.0, memory_bytes=0)
    child = Child(forked, target="toy", channel=ours, stderr_fd=stderr_fd)
    child.send(Request(target="toy", case=case(), edits=()))
    for piece in (b"R{", b'"blocks"', b":1}"):
        theirs.send(piece)
        assert child.read_answer() is None
    theirs.send(b"\n")
    assert child.read_answer() == b'R{"blocks":1}\n'
    child.close()
    theirs.close()
    os.close(their_stderr_fd)


def child_memory(pid: int) -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    stderr_fd = os.open(os.devnull, os.O_RDONLY)
    forked = Forked(pid=pid, timeout_s=60.0, memory_bytes=0)
    child = Child(forked, target="toy", channel=ours, stderr_fd=stderr_fd)
    resident_bytes = child.resident_bytes()
    child.close()
    return resident_bytes


@pytest.mark.parametrize("measure", [child_memory, standalone._resident_bytes])
def test_memory_is_what_a_process_fills_itself(
    measure: Callable[[int], int], tmp_path: Path
) -> None:
    size, slack = 64 << 20, 8 << 20

    def grown(memory: mmap.mmap) -> int:
        before = measure(os.getpid())
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] += 1
        return measure(os.getpid()) - before

    library = tmp_path / "library.so"
    library.write_bytes(bytes(size))
    with (
        library.open("r+b") as file,
        mmap.mmap(file.fileno(), size) as mapped,
    ):
        assert abs(grown(mapped)) < slack
    for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
        with mmap.mmap(-1, size, flags=flags | mmap.MAP_ANONYMOUS) as memory:
            assert abs(grown(memory) - size) < slack


def test_only_the_last_words_are_kept(isolation: Isolation) -> None:
    death = isolation.run("toy", case("last_words"))
    assert isinstance(death, Death)
    assert death.detail.splitlines()[-1] == "line 99999"
    assert len(death.detail) < 1_000
    isolation.run("toy", case("noise"))
    assert isolation._zygote is not None
    child = isolation._zygote.child
    assert child is not None
    assert len(child._stderr) == STDERR_KEPT_BYTES


def test_last_words_tell_nothing_of_the_machine() -> None:
    crash = """import noise
Fatal Python error: Segmentation fault

Current thread 0x00007f2a (most recent call first):
  File "/home/ann/cache/site-packages/vllm/v1/ops.py", line 7 in kernel
  File "/home/ann/kvfuzz/fuzz/targets/toy.py", line 9 in run
  File "/home/ann/kvfuzz/fuzz/_zygote.py", line 1 in _answer

Extension modules: numpy.core (total: 1)
"""
    assert telling_lines(crash).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x… (most recent call first):",
        '  File "vllm/v1/ops.py", line 7 in kernel',
        '  File "targets/toy.py", line 9 in run',
    ]


@pytest.mark.parametrize("position", [0, 7, 19])
def test_the_case_that_harmed_a_later_one_is_found(
    shared: Isolation, position: int
) -> None:
    cases = [case("inspect", tokens=tokens) for tokens in range(20)]
    cases[position] = case("poison")
    shared.run("toy", case("inspect"), fresh=True)
    shared.run_many("toy", cases)
    assert blocks(shared.run("toy", case(tokens=65))) == 5
    (culprit,) = shared.take_culprits()
    assert [request.case for request in culprit.damaging] == [case("poison")]
    assert culprit.victim.case == case(tokens=65)
    assert (culprit.symptom, culprit.reproduced) == ("signal 11", True)
    assert shared.take_culprits() == ()


def test_harm_that_does_not_come_back_is_said_to(shared: Isolation) -> None:
    child, _ = pids(shared)
    os.kill(child, signal.SIGSEGV)
    assert blocks(shared.run("toy", case())) == 3
    (culprit,) = shared.take_culprits()
    assert not culprit.reproduced
    assert case("inspect") in [request.case for request in culprit.damaging]


def test_a_child_killed_from_outside_is_no_death(isolation: Isolation) -> None:
    child, zygote = pids(isolation)
    os.kill(child, signal.SIGKILL)
    assert blocks(isolation.run("toy", case())) == 3
    assert pids(isolation)[0] != child
    assert pids(isolation)[1] == zygote


def test_a_zygote_that_was_killed_is_started_again(tree: Tree) -> None:
    with Isolation(tree=tree, runtime=Runtime(), target_folders=(TOYS,)) as isolation:
        assert isolation.startup_s == 0.0
        child, zygote = pids(isolation)
        grandchild = int(text(isolation.run("toy", case("offspring"))).split()[0])
        once = isolation.startup_s
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: not alive(child))
        assert blocks(isolation.run("toy", case())) == 3
        assert not alive(grandchild)
        assert pids(isolation)[1] != zygote
        assert isolation.startup_s > once > 0.0


def test_a_zygote_that_is_killed_again_and_again_is_given_up(tree: Tree) -> None:
    with (
        Isolation(tree=tree, runtime=Runtime(), target_folders=(TOYS,)) as isolation,
        pytest.raises(IsolationError, match="died 4 times, at last with signal 9"),
    ):
        isolation.run("toy", case("patricide"))


def test_edits_hold_for_their_case_only(isolation: Isolation) -> None:
    modules = ("vllm.utils.math_utils",)
    down = SourceEdit(modules=modules, function="cdiv", old="-(-a // b)", new="a // b")
    fix = Replacement(
        modules=modules,
        function="cdiv",
        implementation="reproducers.fixes.toy:divided",
    )
    assert blocks(isolation.run("toy", case(), fresh=True)) == 3
    assert blocks(isolation.run("toy", case(), edits=(down,))) == 2
    assert blocks(isolation.run("toy", case(), edits=(down,))) == 2
    assert blocks(isolation.run("toy", case(), edits=(down, fix))) == 3
    assert blocks(isolation.run("toy", case(), edits=(down,), fresh=True)) == 2
    assert blocks(isolation.run("toy", case())) == 3
    stray = SourceEdit(modules=modules, function="cdiv", old="b // a", new="")
    with pytest.raises(IsolationError, match="'b // a' 0 times"):
        isolation.run("toy", case(), edits=(stray,))
    assert blocks(isolation.run("toy", case())) == 3


def test_what_a_case_started_ends_with_its_child(isolation: Isolation) -> None:
    near, far = map(int, text(isolation.run("toy", case("offspring"))).split())
    assert alive(near)
    assert alive(far)
    isolation.run("toy", case("exit"))
    assert not alive(near)
    assert not alive(far)


def test_closing_leaves_no_process(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVFUZZ_TEST_MARK", str(tmp_path))
    with Isolation(tree=tree, runtime=Runtime(), target_folders=(TOYS,)) as isolation:
        isolation.run("toy", case("offspring"))
        wait_until(lambda: len(marked(tmp_path)) == 4)
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
    assert marked(tmp_path) == set()
    isolation.run("toy", case("offspring"))
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    isolation.close()
    assert marked(tmp_path) == set()


def test_an_interrupt_leaves_no_answer_for_the_next_case(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Isolation(tree=tree, runtime=Runtime(), target_folders=(TOYS,)) as isolation:
        isolation.run("toy", case())
        previous = signal.signal(signal.SIGALRM, _interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                isolation.run("toy", case("slow"))
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert blocks(isolation.run("toy", case(tokens=16))) == 1


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


PARENT = """
import sys
from pathlib import Path
from fuzz.isolation import Isolation
from fuzz.runtime import Runtime
from fuzz.trees import resolve
from tests.toys import TOYS, case

tree = resolve(sys.argv[1], cache=Path(sys.argv[2]))
isolation = Isolation(tree=tree, runtime=Runtime(), target_folders=(TOYS,))
print("starting", flush=True)
isolation.run("toy", case("offspring"))
print("running", flush=True)
isolation.run("toy", case("hang"))
"""


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_a_killed_parent_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    tree = toy_tree(tmp_path)
    importing = tmp_path / "importing"
    if moment == "starting":
        # The zygote is to be in an import that does not end.
        math_utils = tmp_path / "site-packages/vllm/utils/math_utils.py"
        math_utils.write_text(
            f"import pathlib, time\npathlib.Path({str(importing)!r}).touch()\n"
            "time.sleep(600)\n",
            encoding="utf-8",
        )
    monkeypatch.setenv("KVFUZZ_TEST_MARK", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tree.spec, str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert any(line.strip() == moment for line in parent.stdout)
        if moment == "starting":
            wait_until(importing.exists)
        else:
            # Parent, zygote, child and two grandchildren.
            wait_until(lambda: len(marked(tmp_path)) == 5)
        parent.kill()
        parent.wait()
        wait_until(lambda: marked(tmp_path) == set())


def test_a_tree_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    broken = toy_tree(tmp_path)
    math_utils = tmp_path / "site-packages/vllm/utils/math_utils.py"
    math_utils.write_text("raise ImportError('no such operator')\n", encoding="utf-8")
    with (
        Isolation(tree=broken, runtime=Runtime(), target_folders=(TOYS,)) as isolation,
        pytest.raises(IsolationError, match="ImportError: no such operator"),
    ):
        isolation.run("toy", case())


def test_a_folder_without_targets_is_an_error(tree: Tree, tmp_path: Path) -> None:
    with (
        Isolation(
            tree=tree, runtime=Runtime(), target_folders=(tmp_path,)
        ) as isolation,
        pytest.raises(IsolationError, match="has no target"),
    ):
        isolation.run("toy", case())


def test_a_target_of_another_triton_mode_is_refused(tree: Tree) -> None:
    runtime = Runtime(triton="interpret")
    with (
        Isolation(tree=tree, runtime=runtime, target_folders=(TOYS,)) as isolation,
        pytest.raises(IsolationError, match="needs platform 'cpu' and triton 'jit'"),
    ):
        isolation.run("toy", case())


def test_a_threaded_zygote_does_not_fork(tmp_path: Path) -> None:
    threaded = toy_tree(tmp_path)
    math_utils = tmp_path / "site-packages/vllm/utils/math_utils.py"
    math_utils.write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
        encoding="utf-8",
    )
    with (
        Isolation(
            tree=threaded, runtime=Runtime(), target_folders=(TOYS,)
        ) as isolation,
        pytest.raises(IsolationError, match="the zygote has 2 threads"),
    ):
        isolation.run("toy", case())


def test_five_hundred_cases_take_no_time(isolation: Isolation) -> None:
    isolation.run("toy", case())
    began = time.monotonic()
    results = isolation.run_many("toy", [case(tokens=tokens) for tokens in range(500)])
    # 0.1 ms a case on one core; a fork for each would take over 2 s.
    assert time.monotonic() - began < 2.0
    assert [blocks(result) for result in results] == [-(-n // 16) for n in range(500)]


@pytest.mark.subject
@pytest.mark.network
def test_a_release_is_forked_without_threads() -> None:
    with Isolation(
        tree=resolve("0.33.0"), runtime=Runtime(), target_folders=(TOYS,)
    ) as isolation:
        assert blocks(isolation.run("toy", case())) == 3
        assert isinstance(isolation.run("toy", case("segfault")), Death)
        assert text(isolation.run("toy", case("inspect"))).split()[2:4] == ["1", "1"]
