"""Releases: fetched once, checked, whole or not at all, and refused when damaged.

Most tests let pip fetch a made-up wheel from a folder; one uses the default release.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz.trees import DEFAULT_RELEASE, Tree, TreeError, release, resolve
from fuzz.trees.tree import digest_of
from fuzz.trees.wheel import unpack
from tests.fake_vllm import FILES, offline_environment, write_wheel

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks at, and only at that."""
    folder = tmp_path / "index"
    folder.mkdir()
    environment = offline_environment(index=folder, cache=tmp_path / "cache")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KVFUZZ_VLLM", raising=False)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def refusal(spec: str | None, *, repair: bool = False) -> str:
    with pytest.raises(TreeError) as caught:
        resolve(spec, repair=repair)
    return str(caught.value)


def unpacking_refusal(wheel: Path, target: Path) -> str:
    with pytest.raises(TreeError) as caught:
        unpack(wheel, "9.9.1", target)
    return str(caught.value)


def remains(cache: Path) -> list[str]:
    """What lies in the cache apart from lock files, which are meant to stay."""
    found = cache.rglob("*") if cache.is_dir() else ()
    names = (p.relative_to(cache) for p in found)
    return sorted(str(n) for n in names if len(n.parts) > 1 and n.parts[0] != "locks")


def fetched(index: Path) -> Tree:
    write_wheel(index)
    return resolve("9.9.1")


def test_a_release_becomes_a_tree_of_its_python_files(index: Path, cache: Path) -> None:
    lines: list[str] = []
    write_wheel(index)
    tree = resolve("9.9.1", progress=lines.append)
    assert tree.root == cache / "trees" / "9.9.1" / "site-packages"
    assert (tree.kind, tree.version, tree.patches) == ("release", "9.9.1", ())
    unpacked = {
        p.relative_to(tree.root).as_posix() for p in tree.root.rglob("*") if p.is_file()
    }
    record = "vllm-9.9.1+cpu.dist-info"
    assert unpacked == {*FILES, f"{record}/METADATA", f"{record}/INSTALLER"}
    assert lines[0].startswith("downloading vLLM 9.9.1")
    assert resolve("9.9.1", progress=lines.append) == tree
    assert len(lines) == 2  # downloading and checking, once


def test_the_digest_covers_names_and_contents_of_python_files(tmp_path: Path) -> None:
    names = {"vllm/a.py": "1", "vllm/b.py": "2", "vllm/c.json": "3"}
    digest = digest_of(names)
    assert digest == digest_of({**names, "vllm/c.json": "4"})
    assert digest != digest_of({**names, "vllm/b.py": "4"})
    assert digest != digest_of({"vllm/a.py": "1", "vllm/d.py": "2"})


def test_the_environment_names_the_release(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    monkeypatch.setenv("KVFUZZ_VLLM", "9.9.1")
    assert resolve(None).version == "9.9.1"
    monkeypatch.delenv("KVFUZZ_VLLM")
    assert f"there is no release {DEFAULT_RELEASE} of vLLM" in refusal(None)


def test_an_unknown_release_is_answered_with_the_newest_ones(
    index: Path, cache: Path
) -> None:
    write_wheel(index, version="9.8.0")
    write_wheel(index, version="9.9.1")
    message = refusal("9.9.7")
    assert "there is no release 9.9.7 of vLLM" in message
    assert "9.8.0, 9.9.1" in message
    assert remains(cache) == []


def test_no_network_is_told_apart_from_an_unknown_release(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    message = refusal("9.9.1")
    assert "the package index is not reached: check the network" in message
    assert "PIP_FIND_LINKS=FOLDER" in message
    assert remains(cache) == []


def test_an_interpreter_without_pip_is_told_how_to_get_it() -> None:
    message = release._explain_pip("9.9.1", "/usr/bin/python: No module named pip\n")
    assert "-m ensurepip" in message


def test_a_full_disk_in_pip_says_how_much_is_needed() -> None:
    log = "ERROR: Could not install: [Errno 28] No space left on device\n"
    assert "disk is full: vLLM 9.9.1 needs" in release._explain_pip("9.9.1", log)


def test_a_full_disk_leaves_nothing_half_written(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_wheel(index)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        message = refusal("9.9.1")
    assert "the disk is full" in message
    assert "set KVFUZZ_CACHE to a folder" in message
    assert remains(cache) == []
    assert resolve("9.9.1").version == "9.9.1"


def test_a_cache_that_cannot_be_written_is_named(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    cache.write_text("a file where the folder should be")
    message = refusal("9.9.1")
    assert f"cannot write the cache of trees at {cache}" in message
    assert "set KVFUZZ_CACHE" in message


def test_a_truncated_wheel_is_refused_and_nothing_stays(
    index: Path, cache: Path
) -> None:
    wheel = write_wheel(index)
    content = wheel.read_bytes()
    wheel.write_bytes(content[: len(content) // 2])
    message = refusal("9.9.1")
    assert "of vLLM 9.9.1 is damaged" in message
    assert "Fetch it again (python -m fuzz.trees fetch 9.9.1)" in message
    assert remains(cache) == []


def test_a_flipped_bit_in_a_member_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    content = bytearray(wheel.read_bytes())
    content[60] ^= 0x10  # inside the first member's compressed bytes
    wheel.write_bytes(content)
    message = unpacking_refusal(wheel, tmp_path / "out")
    assert "of vLLM 9.9.1 is damaged" in message
    assert "python -m fuzz.trees fetch 9.9.1" in message


def test_a_file_that_record_knows_otherwise_is_refused(
    index: Path, cache: Path
) -> None:
    write_wheel(index, record_changes={"vllm/window.py": "sha256=AAAA"})
    message = refusal("9.9.1")
    assert "damaged: vllm/window.py does not match its hash in RECORD" in message
    assert remains(cache) == []


def test_a_file_that_record_does_not_know_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, record_changes={"vllm/window.py": None})
    message = unpacking_refusal(wheel, tmp_path / "out")
    assert "vllm/window.py is in only one of archive and RECORD" in message


def test_a_name_that_leads_out_of_the_package_is_refused(tmp_path: Path) -> None:
    files = {**FILES, "vllm/../../escaped.py": "print('out')\n"}
    wheel = write_wheel(tmp_path / "wheels", files=files)
    message = unpacking_refusal(wheel, tmp_path / "in" / "out")
    assert "leads out of the package" in message
    assert not list(tmp_path.rglob("escaped.py"))


def test_a_wheel_without_the_package_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, files={"vllm/window.py": ""})
    message = unpacking_refusal(wheel, tmp_path / "out")
    assert "vllm/__init__.py is not in it" in message


def test_a_wheel_of_another_version_inside_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, version="9.9.2")
    message = unpacking_refusal(wheel, tmp_path / "out")
    assert "vllm-9.9.1.dist-info/RECORD is missing" in message


def test_a_wheel_that_is_not_the_pinned_one_is_refused(
    index: Path, cache: Path
) -> None:
    write_wheel(index, version="0.20.1")
    message = refusal("0.20.1")
    assert f"and {release.PINNED_WHEELS['0.20.1']} was expected" in message
    assert "pip config list" in message
    assert remains(cache) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: p.write_text("WIDTH = 5\n"), "vllm/window.py was changed"),
        (lambda p: p.unlink(), "vllm/window.py is missing"),
        (lambda p: p.with_name("new.py").write_text(""), "vllm/new.py was added"),
    ],
)
def test_a_damaged_tree_is_refused_until_it_is_fetched_anew(
    index: Path, damage: object, said: str
) -> None:
    tree = fetched(index)
    assert callable(damage)
    damage(tree.root / "vllm" / "window.py")
    lines: list[str] = []
    with pytest.raises(TreeError, match=said) as caught:
        resolve("9.9.1", progress=lines.append)
    assert "run `python -m fuzz.trees fetch 9.9.1`" in str(caught.value)
    assert lines == []
    assert resolve("9.9.1", repair=True) == tree
    assert resolve("9.9.1") == tree


@pytest.mark.parametrize("content", ["", "[]", '{"format_version": 99, "files": {}}'])
def test_a_manifest_that_is_not_ours_is_refused(index: Path, content: str) -> None:
    tree = fetched(index)
    (tree.root.parent / "manifest.json").write_text(content)
    assert "is not one of ours" in refusal("9.9.1")
    assert resolve("9.9.1", repair=True) == tree


def test_bytecode_is_no_damage(index: Path) -> None:
    tree = fetched(index)
    bytecode = tree.root / "vllm" / "__pycache__"
    bytecode.mkdir()
    (bytecode / "window.cpython-311.pyc").write_bytes(b"compiled")
    (bytecode / "stray.py").write_text("")
    assert resolve("9.9.1") == tree


def test_first_use_by_four_processes_fetches_once(index: Path) -> None:
    write_wheel(index)
    command = [sys.executable, "-m", "fuzz.trees", "path", "9.9.1"]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = [p.communicate(timeout=60) for p in processes]
    assert [p.returncode for p in processes] == [0] * 4, answers
    assert len({out for out, _ in answers}) == 1
    assert sum("downloading vLLM" in err for _, err in answers) == 1


def test_a_process_killed_while_unpacking_leaves_nothing_that_counts(
    index: Path, cache: Path
) -> None:
    write_wheel(index)
    program = (
        "import time\n"
        "from fuzz.trees import release, resolve\n"
        "unpack = release.unpack\n"
        "def unpack_and_stall(*arguments):\n"
        "    unpack(*arguments)\n"
        "    print('unpacked', flush=True)\n"
        "    time.sleep(60)\n"
        "release.unpack = unpack_and_stall\n"
        "resolve('9.9.1')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "unpacked\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert any(".new-9.9.1" in name for name in remains(cache))
    lines: list[str] = []
    tree = resolve("9.9.1", progress=lines.append)
    assert tree.version == "9.9.1"
    assert any("left by a process that was killed" in line for line in lines)
    assert not any(".new-9.9.1" in name for name in remains(cache))


def test_waiting_for_another_process_is_said(index: Path, cache: Path) -> None:
    import filelock

    write_wheel(index)
    lines: list[str] = []
    (cache / "locks").mkdir(parents=True)
    lock = filelock.FileLock(cache / "locks" / "vllm-9.9.1.lock")
    lock.acquire()

    def tell(line: str) -> None:
        lines.append(line)
        lock.release()

    assert resolve("9.9.1", progress=tell).version == "9.9.1"
    assert lines[0] == "waiting for another process that prepares vllm-9.9.1"


def test_a_long_download_is_told_every_two_seconds(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(bytes(3 * 2**20))
    lines: list[str] = []
    stalled = subprocess.Popen(["sleep", "2.5"])
    release._wait_for(stalled, tmp_path, progress=lines.append)
    assert lines == ["downloading: 3 MB after 2 s"]


@pytest.mark.network
def test_the_default_release_resolves_and_is_checked_in_a_second() -> None:
    tree = resolve(None if "KVFUZZ_VLLM" not in os.environ else DEFAULT_RELEASE)
    started = time.perf_counter()
    assert resolve(DEFAULT_RELEASE) == tree
    seconds = time.perf_counter() - started
    assert tree.version == DEFAULT_RELEASE
    assert (tree.root / "vllm/v1/core/kv_cache_utils.py").is_file()
    assert not list(tree.root.rglob("*.so"))
    assert seconds < 2, "the check at every start of a worker must stay cheap"
    assert DEFAULT_RELEASE in release.PINNED_WHEELS
