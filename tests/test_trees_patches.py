"""Patch series: applied exactly or refused, and what they changed is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fuzz.trees import Tree, TreeError, resolve
from fuzz.trees.__main__ import main
from fuzz.trees.changes import changed_functions
from tests.fake_vllm import FILES, write_package

SERIES = Path(__file__).parent / "patches"
WINDOW = FILES["vllm/window.py"]
FIXED = WINDOW.replace("(length - 1)", "max(length - 1, 0)")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVFUZZ_CACHE", str(tmp_path / "cache"))
    return write_package(tmp_path / "checkout")


@pytest.fixture
def series(tmp_path: Path) -> Path:
    folder = tmp_path / "series folder"
    folder.mkdir()
    return folder


def difference(old: dict[str, str], new: dict[str, str], work: Path) -> str:
    """What `git diff` says between two sets of files."""
    for folder, files in (("a", old), ("b", new)):
        write_package(work / folder, files=files)
        (work / folder).mkdir(exist_ok=True)
    command = ["git", "diff", "--no-index", "--no-prefix", "a", "b"]
    done = subprocess.run(
        command, cwd=work, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    return done.stdout


def write_patch(
    series: Path, old: dict[str, str], new: dict[str, str], name: str = "1.patch"
) -> str:
    text = difference(old, new, series.parent / f"work-{name}")
    (series / name).write_text(text)
    return text


def patched(checkout: Path, series: Path) -> Tree:
    return resolve(str(checkout), patches=series)


def refusal(checkout: Path, series: Path) -> str:
    with pytest.raises(TreeError) as caught:
        patched(checkout, series)
    kept = checkout.parent / "cache" / "patched"
    assert not kept.exists() or list(kept.iterdir()) == []
    return str(caught.value)


def test_a_patch_changes_a_copy_and_says_which_function(
    checkout: Path, series: Path
) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    plain, tree = resolve(str(checkout)), patched(checkout, series)
    assert (tree.root / "vllm" / "window.py").read_text() == FIXED
    assert (checkout / "vllm" / "window.py").read_text() == WINDOW
    assert tree.patches == ("1.patch",)
    assert tree.digest != plain.digest
    assert (tree.kind, tree.version) == ("path", "9.9.1")
    assert tree.notes == (
        "1.patch: applied at the folder that has vllm/",
        "changes vllm/window.py: first_column",
    )
    assert patched(checkout, series) == tree


def test_a_patch_made_inside_the_package_is_found_to_be(
    checkout: Path, series: Path
) -> None:
    write_patch(series, {"window.py": WINDOW}, {"window.py": FIXED})
    tree = patched(checkout, series)
    assert tree.notes[0] == "1.patch: applied inside vllm/"
    assert (tree.root / "vllm" / "window.py").read_text() == FIXED


def test_files_outside_the_package_are_skipped_by_name(
    checkout: Path, series: Path
) -> None:
    write_patch(
        series,
        {"vllm/window.py": WINDOW, "csrc/a.cu": "1\n"},
        {"vllm/window.py": FIXED, "csrc/a.cu": "2\n", "tests/test_window.py": "x\n"},
    )
    notes = patched(checkout, series).notes
    assert "1.patch: skipped csrc/a.cu (outside vllm/)" in notes
    assert "1.patch: skipped tests/test_window.py (outside vllm/)" in notes
    assert "changes vllm/window.py: first_column" in notes


def test_a_series_that_changes_only_a_test_says_so_loudly(
    checkout: Path, series: Path
) -> None:
    write_patch(series, {"tests/t.py": "1\n"}, {"tests/t.py": "2\n"})
    tree = patched(checkout, series)
    assert tree.notes[-1].startswith(
        "WARNING: these patches change nothing under vllm/; the tree under test is the "
        "unpatched 9.9.1"
    )
    assert tree.digest == resolve(str(checkout)).digest


def test_files_that_appear_and_disappear_are_named(
    checkout: Path, series: Path
) -> None:
    write_patch(
        series,
        {"vllm/window.py": WINDOW, "vllm/kernels/configs/tuned.json": "{}\n"},
        {"vllm/new/kernel.py": "x = 1\n", "vllm/kernels/configs/tuned.json": "[]\n"},
    )
    notes = patched(checkout, series).notes
    assert notes[1:] == (
        "changes vllm/kernels/configs/tuned.json",
        "adds vllm/new/kernel.py",
        "removes vllm/window.py",
    )


def test_a_series_file_gives_the_order(checkout: Path, series: Path) -> None:
    twice = FIXED.replace("WIDTH = 4", "WIDTH = 5").replace("max(", "min(")
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED}, "z")
    write_patch(series, {"vllm/window.py": FIXED}, {"vllm/window.py": twice}, "a")
    (series / "series").write_text("# first things first\nz -p1\na # then this\n")
    tree = patched(checkout, series)
    assert tree.patches == ("z", "a")
    assert (tree.root / "vllm" / "window.py").read_text() == twice


def test_another_content_of_a_patch_is_another_tree(
    checkout: Path, series: Path
) -> None:
    text = write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    first = patched(checkout, series)
    (series / "1.patch").write_text(text.replace("max(", "min("))
    second = patched(checkout, series)
    assert second.root != first.root
    assert second.digest != first.digest


def test_an_edit_of_the_checkout_is_seen_below_the_patch(
    checkout: Path, series: Path
) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    first = patched(checkout, series)
    (checkout / "vllm" / "__init__.py").write_text("EDITED = True\n")
    second = patched(checkout, series)
    assert second.digest != first.digest
    assert (second.root / "vllm" / "__init__.py").read_text() == "EDITED = True\n"


def test_a_patch_that_does_not_fit_names_the_hunk(checkout: Path, series: Path) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    other = WINDOW.replace("(length - 1)", "(length - 2)")
    (checkout / "vllm" / "window.py").write_text(other)
    message = refusal(checkout, series)
    assert "1.patch does not apply exactly" in message
    assert "hunk 1 of vllm/window.py does not fit" in message
    assert "Make the patch anew on this version" in message


def test_a_hunk_that_lands_elsewhere_is_refused(checkout: Path, series: Path) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    (checkout / "vllm" / "window.py").write_text("# one\n# two\n" + WINDOW)
    message = refusal(checkout, series)
    assert "hunk 1 of vllm/window.py lands at line 4, with offset 2 lines" in message


def test_fuzz_is_refused(checkout: Path, series: Path) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    # The farthest line of context differs, which patch(1) would call fuzz 1.
    other = WINDOW.replace("class Table", "class Rows")
    (checkout / "vllm" / "window.py").write_text(other)
    assert "hunk 1 of vllm/window.py does not fit" in refusal(checkout, series)


def test_a_change_that_the_tree_has_already_is_told_so(
    checkout: Path, series: Path
) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    (checkout / "vllm" / "window.py").write_text(FIXED)
    assert "Its change is in the tree already" in refusal(checkout, series)


def test_a_patch_of_a_file_that_is_not_there_names_it(
    checkout: Path, series: Path
) -> None:
    write_patch(series, {"vllm/gone.py": "1\n"}, {"vllm/gone.py": "2\n"})
    assert "vllm/gone.py: No such file or directory" in refusal(checkout, series)


def test_one_bad_patch_of_a_series_leaves_nothing(checkout: Path, series: Path) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    write_patch(series, {"vllm/gone.py": "1\n"}, {"vllm/gone.py": "2\n"}, "2.patch")
    assert "2.patch does not apply exactly" in refusal(checkout, series)


def test_text_that_is_no_patch_is_refused(checkout: Path, series: Path) -> None:
    (series / "1.patch").write_text("Dear maintainers,\n")
    assert "is not a patch that git understands" in refusal(checkout, series)


def test_a_patch_that_leads_out_of_the_tree_is_refused(
    checkout: Path, series: Path
) -> None:
    text = write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    (series / "1.patch").write_text(text.replace("vllm/window.py", "vllm/../../x.py"))
    assert "1.patch does not apply exactly" in refusal(checkout, series)


def test_a_patch_that_makes_a_link_is_refused(checkout: Path, series: Path) -> None:
    (series / "1.patch").write_text(
        "diff --git a/vllm/passwd.py b/vllm/passwd.py\n"
        "new file mode 120000\n"
        "--- /dev/null\n"
        "+++ b/vllm/passwd.py\n"
        "@@ -0,0 +1 @@\n"
        "+/etc/passwd\n"
        "\\ No newline at end of file\n"
    )
    assert "makes vllm/passwd.py a link" in refusal(checkout, series)


def test_a_result_that_is_no_python_is_said(checkout: Path, series: Path) -> None:
    broken = WINDOW.replace("return (", "return ((")
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": broken})
    notes = patched(checkout, series).notes
    assert "WARNING: the result is not Python" in notes[-1]


@pytest.mark.parametrize("name", ["nowhere.patch", "../outside.patch", "/etc/passwd"])
def test_a_series_names_only_files_beside_it(
    checkout: Path, series: Path, name: str
) -> None:
    (series.parent / "outside.patch").write_text("")
    (series / "series").write_text(f"{name}\n")
    assert f"series names {name!r}, and there is no such file" in refusal(
        checkout, series
    )


def test_a_folder_without_patches_is_refused(checkout: Path, series: Path) -> None:
    assert "there is no patch in" in refusal(checkout, series)
    assert "is not a folder" in refusal(checkout, series / "nowhere")


def test_a_cache_inside_a_repository_changes_nothing(
    checkout: Path, series: Path
) -> None:
    # git apply skips, silently, what lies outside the repository's current folder.
    subprocess.run(["git", "init", "-q"], cwd=checkout.parent, check=True)
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    tree = patched(checkout, series)
    assert (tree.root / "vllm" / "window.py").read_text() == FIXED


def test_a_damaged_copy_is_refused(checkout: Path, series: Path) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    tree = patched(checkout, series)
    (tree.root / "vllm" / "window.py").write_text(WINDOW)
    with pytest.raises(TreeError, match=r"was changed: remove .* and run again"):
        patched(checkout, series)


def test_compiled_files_are_linked_and_not_copied(checkout: Path, series: Path) -> None:
    (checkout / "vllm" / "_C.abi3.so").write_bytes(bytes(3 * 2**20))
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    copy = patched(checkout, series).root / "vllm" / "_C.abi3.so"
    assert copy.resolve() == checkout / "vllm" / "_C.abi3.so"


def test_the_command_shows_the_notes(
    checkout: Path, series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_patch(series, {"vllm/window.py": WINDOW}, {"vllm/window.py": FIXED})
    assert main(["fetch", str(checkout), "--patches", str(series)]) == 0
    assert "changes vllm/window.py: first_column" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert "patched  9.9.1-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (WINDOW.replace("request *", "request //"), "Table.row"),
        (WINDOW.replace("WIDTH = 4", "WIDTH = 5"), "code outside functions"),
        ("# a comment\n" + WINDOW, "comments or layout only, no function differs"),
        (WINDOW + "\n\ndef more() -> None: ...\n", "more"),
        (WINDOW.replace("class Table", "class Rows"), "Table.row, "),
    ],
)
def test_the_functions_that_differ_are_named(new: str, said: str) -> None:
    assert said in changed_functions(WINDOW.encode(), new.encode())


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "release", "where"),
    [
        ("clamp-0.33.0", "0.33.0", "applied at the folder that has vllm/"),
        ("clamp-0.20.1", "0.20.1", "applied at the folder that has vllm/"),
        ("inside", "0.33.0", "applied inside vllm/"),
    ],
)
def test_the_sample_series_change_the_aligned_window(
    name: str, release: str, where: str, tmp_path: Path
) -> None:
    tree = resolve(release, patches=SERIES / name)
    assert tree.notes[0] == f"0001-clamp-window.patch: {where}"
    assert tree.notes[-1] == (
        "changes vllm/v1/attention/backends/utils.py: mamba_get_block_table_tensor"
    )


@pytest.mark.network
def test_the_sample_series_of_a_test_alone_warns() -> None:
    tree = resolve("0.33.0", patches=SERIES / "test-only")
    assert "WARNING: these patches change nothing under vllm/" in tree.notes[-1]


@pytest.mark.network
def test_a_series_for_another_release_is_refused() -> None:
    with pytest.raises(TreeError, match=r"hunk 1 of .*utils.py does not fit"):
        resolve("0.20.1", patches=SERIES / "clamp-0.33.0")
