"""Trees that are already there, the command for people, and activation."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.trees import TreeError, resolve
from fuzz.trees.__main__ import main
from tests.fake_vllm import FILES, offline_environment, write_package, write_wheel

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a pip that looks only at an index of its own."""
    index, folder = tmp_path / "index", tmp_path / "cache"
    for name, value in offline_environment(index=index, cache=folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KVFUZZ_VLLM", raising=False)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of the made-up vLLM, with more than the package in it."""
    folder = write_package(tmp_path / "my vllm")
    (folder / "tests").mkdir()
    (folder / "tests" / "conftest.py").write_text("")
    (folder / "setup.py").write_text("raise SystemExit('not to be imported')\n")
    return folder


def refusal(spec: str) -> str:
    with pytest.raises(TreeError) as caught:
        resolve(spec)
    return str(caught.value)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_of_a_checkout_only_the_package_is_exposed(checkout: Path) -> None:
    tree = resolve(str(checkout))
    assert (tree.kind, tree.version) == ("path", "9.9.1")
    assert tree.root.name == "site-packages"
    exposed = sorted(p.name for p in tree.root.iterdir())
    assert exposed == ["vllm", "vllm-9.9.1+cpu.dist-info"]
    assert (tree.root / "vllm").resolve() == checkout / "vllm"


def test_an_edit_is_seen_by_the_next_run(checkout: Path) -> None:
    before = resolve(str(checkout))
    assert resolve(str(checkout)) == before
    (checkout / "vllm" / "window.py").write_text("WIDTH = 5\n")
    after = resolve(str(checkout))
    assert after.root == before.root
    assert after.digest != before.digest
    assert (after.root / "vllm" / "window.py").read_text() == "WIDTH = 5\n"


def test_a_checkout_and_a_wheel_of_the_same_files_have_one_digest(
    checkout: Path, tmp_path: Path
) -> None:
    write_wheel(tmp_path / "index")
    assert resolve("9.9.1").digest == resolve(str(checkout)).digest


def test_the_version_comes_from_the_dist_info_where_the_package_has_none(
    checkout: Path,
) -> None:
    (checkout / "vllm" / "_version.py").unlink()
    assert resolve(str(checkout)).version == "unknown"
    (checkout / "vllm-9.9.2.dist-info").mkdir()
    assert resolve(str(checkout)).version == "9.9.2"


def test_a_version_file_that_is_no_python_says_unknown(checkout: Path) -> None:
    (checkout / "vllm" / "_version.py").write_text("version = = 1\n")
    assert resolve(str(checkout)).version == "unknown"


def test_a_version_cannot_lead_out_of_the_cache(checkout: Path, cache: Path) -> None:
    (checkout / "vllm" / "_version.py").write_text("version = '../../../x'\n")
    tree = resolve(str(checkout))
    assert sorted(p.name for p in tree.root.iterdir())[1] == "vllm-0.0.0+cpu.dist-info"
    assert tree.root.is_relative_to(cache)


@pytest.mark.parametrize(
    "spec", ["../x", "0.33.0/../nowhere", "-rfoo", "v0.33.0", "0.33", "x" * 300, "~a/b"]
)
def test_a_spec_that_names_nothing_says_what_is_expected(spec: str) -> None:
    message = refusal(spec)
    assert repr(spec) in message
    assert "which does not exist; expected is the folder that contains vllm/" in message
    assert "a release such as 0.33.0, or installed" in message


@pytest.mark.parametrize("spec", ["", "\0", "a\nb", "x" * 5000])
def test_a_spec_that_can_be_no_name_is_refused(spec: str) -> None:
    assert "is neither a release such as 0.33.0, nor installed" in refusal(spec)


def test_a_folder_without_the_package_is_refused(checkout: Path) -> None:
    message = refusal(str(checkout.parent))
    assert "there is no vllm/ in it" in message
    assert "name a folder with vllm/__init__.py in it" in message


def test_the_package_itself_is_answered_with_its_parent(checkout: Path) -> None:
    assert f"name {checkout}" in refusal(str(checkout / "vllm"))


def test_a_wheel_file_is_answered_with_unpacking_it(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "index")
    assert "a file, and the folder that contains vllm/" in refusal(str(wheel))
    assert "unpack it and name the folder" in refusal(str(wheel))


def test_a_link_that_leads_elsewhere_is_refused(checkout: Path) -> None:
    tree = resolve(str(checkout))
    (tree.root / "vllm").unlink()
    (tree.root / "vllm").symlink_to(ROOT)
    message = refusal(str(checkout))
    assert "leads elsewhere: remove" in message


def test_a_cache_that_cannot_be_written_is_named(checkout: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert f"cannot write the cache of trees at {cache}" in refusal(str(checkout))


def test_installed_is_what_an_import_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_package(tmp_path / "env" / "site-packages")
    monkeypatch.syspath_prepend(str(place))
    tree = resolve("installed")
    assert (tree.kind, tree.version, tree.root) == ("installed", "9.9.1", place)
    assert "vllm" not in sys.modules


def test_an_editable_install_is_exposed_like_a_checkout(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(checkout))
    tree = resolve("installed")
    assert tree.kind == "installed"
    assert tree.root.name == "site-packages"
    assert (tree.root / "vllm").resolve() == checkout / "vllm"


def test_nothing_installed_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    importlib.invalidate_caches()
    message = refusal("installed")
    assert "`import vllm` finds nothing in this environment" in message
    assert "pip install vllm" in message


def test_the_command_shows_paths_and_lists(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    assert "none yet: python -m fuzz.trees fetch" in capsys.readouterr().out
    write_wheel(tmp_path / "index")
    assert main(["path", "9.9.1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}/cache/trees/9.9.1/site-packages\n"
    assert "downloading vLLM 9.9.1" in captured.err
    assert main(["fetch", str(checkout)]) == 0
    assert "vLLM 9.9.1 (path), SHA-256 " in capsys.readouterr().out
    assert main(["list"]) == 0
    listing = capsys.readouterr().out
    assert "release  9.9.1, 0 MB" in listing
    assert f"path     {checkout}" in listing


def test_the_command_ends_with_2_and_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["path", "../x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: --vllm '../x' names ")


def test_the_command_fetches_a_damaged_release_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(tmp_path / "index")
    assert main(["fetch", "9.9.1"]) == 0
    (tmp_path / "cache/trees/9.9.1/site-packages/vllm/window.py").write_text("")
    assert main(["path", "9.9.1"]) == 2
    assert "vllm/window.py was changed" in capsys.readouterr().err
    assert main(["fetch", "9.9.1"]) == 0
    assert "fetching vLLM 9.9.1 anew, for " in capsys.readouterr().err
    assert main(["path", "9.9.1"]) == 0


def test_resolving_imports_no_torch(checkout: Path) -> None:
    done = run(
        "import sys\n"
        "from fuzz.trees.__main__ import main\n"
        "assert main(['path', sys.argv[1]]) == 0\n"
        "print(sorted({'torch', 'triton', 'numpy', 'vllm'} & set(sys.modules)))\n",
        str(checkout),
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


ACTIVATE = """
import json, os, subprocess, sys
from fuzz.trees import TreeError, activate, resolve
tree = resolve(sys.argv[1])
activate(tree)
import vllm
activate(tree)
child = "import vllm; from importlib.metadata import version; "
child += "print(vllm.__file__, version('vllm'))"
command = [sys.executable, "-c", child]
print(vllm.__file__)
print(subprocess.check_output(command, text=True, cwd="/").strip())
print(os.environ["VLLM_CACHE_ROOT"])
try:
    activate(resolve(sys.argv[2]))
except TreeError as error:
    print(error)
"""


@pytest.mark.subject
def test_a_process_and_its_children_import_the_activated_tree(
    checkout: Path, tmp_path: Path, cache: Path
) -> None:
    other = write_package(tmp_path / "other", files={**FILES, "vllm/more.py": ""})
    done = run(ACTIVATE, str(checkout), str(other))
    tree = resolve(str(checkout))
    mine, child, remembered, refused = done.stdout.splitlines() or [done.stderr] * 4
    assert mine == f"{tree.root}/vllm/__init__.py"
    assert child == f"{mine} 9.9.1+cpu"
    assert Path(remembered) == cache / "vllm" / tree.digest[:16]
    assert f"vllm is imported already from {tree.root}" in refused
    assert "start another" in refused


def test_an_environment_is_not_moved_to_the_front() -> None:
    import sysconfig

    from fuzz.trees.activate import _put_first

    before, inherited = list(sys.path), os.environ.get("PYTHONPATH")
    _put_first(Path(sysconfig.get_path("purelib")))
    assert sys.path == before
    assert os.environ.get("PYTHONPATH") == inherited
