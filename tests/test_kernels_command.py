"""`python -m fuzz.kernels` on a tree of a few kernels, and on a module of 0.33.0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.kernels.sources import kernels_of, targets_naming
from tests.fake_vllm import write_package

ROOT = Path(__file__).parent.parent

KERNELS = """\
import os
import time

import triton as compiler
import triton.language as tl
from triton import jit


@jit
def double(x):
    return x * 2


@compiler.jit
def copy_kernel(out_ptr, slot_ptr, x_ptr, stride, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    at = tl.load(slot_ptr + tl.program_id(0))
    tl.store(out_ptr + at * stride + lanes, double(tl.load(x_ptr + lanes)))


@compiler.jit
def chosen_kernel(out_ptr, x_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    value = tl.load(x_ptr + lanes).to(tl.float32)
    tl.store(out_ptr + (value * 8).to(tl.int32), lanes, mask=value > 0)


@compiler.jit
def wrong_kernel(out_ptr):
    tl.store(out_ptr, there_is_no_such_name)


@compiler.jit(debug=False)
def deadly_kernel(out_ptr, END: tl.constexpr):
    tl.store(out_ptr, END)


def configured(*args):
    @compiler.jit
    def inner_kernel(out_ptr):
        tl.store(out_ptr, 1)

    inner_kernel[(1,)](*args)


class Held:
    @staticmethod
    @compiler.jit
    def kernel(out_ptr):
        tl.store(out_ptr, 1)


def launch(out, slots, x):
    copy_kernel[(1,)](out, slots, x, 1, BLOCK=8)
"""
FILES = {
    "vllm/__init__.py": "",
    "vllm/_version.py": "__version__ = version = '9.9.1'\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/sample/few.py": KERNELS,
    "vllm/absent.py": (
        "import triton\nimport there_is_no_such_module\n\n\n"
        "@triton.jit\ndef lost_kernel(out_ptr):\n    pass\n"
    ),
    "vllm/deadly.py": (
        "import os\nimport triton\nos._exit(7)\n\n\n"
        "@triton.jit\ndef unborn_kernel(out_ptr):\n    pass\n"
    ),
    "vllm/glue.py": (
        "from triton.experimental import gluon\n\n\n"
        "@gluon.jit\ndef glued_kernel(out_ptr):\n    pass\n"
    ),
}


def run(tree: str | Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz.kernels", "--vllm", str(tree), *options],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree") / "site-packages"
    return write_package(folder, files=FILES)


def test_every_decorated_function_is_found_by_whatever_name(tree: Path) -> None:
    found = {each.name: each for each in kernels_of(tree)}
    assert set(found) == {
        *("double", "copy_kernel", "chosen_kernel", "wrong_kernel", "deadly_kernel"),
        *("configured.<locals>.inner_kernel", "Held.kernel"),
        *("lost_kernel", "unborn_kernel", "glued_kernel"),
    }
    assert [name for name, each in found.items() if each.device] == ["double"]
    assert found["copy_kernel"].launchers == ("launch",)
    assert found["configured.<locals>.inner_kernel"].launchers == ("configured",)
    assert found["glued_kernel"].language == "gluon"
    lines = KERNELS.splitlines()
    assert lines[found["deadly_kernel"].line - 1] == "@compiler.jit(debug=False)"


def test_a_target_is_known_by_the_wrapper_that_it_calls(tmp_path: Path) -> None:
    text = (
        "import triton\n\n\n@triton.jit\ndef odd_kernel(p):\n    pass\n\n\n"
        "def {}(p):\n    odd_kernel[(1,)](p)\n"
    )
    wrapper = "triton_unified_attention"
    named = {}
    for function in ("unified_attention", "not_called_by_any"):
        name = f"vllm/v1/attention/ops/{wrapper}.py"
        root = write_package(tmp_path / function, files={name: text.format(function)})
        kernels = kernels_of(root)
        named[function] = targets_naming(kernels)[kernels[0].key]
    assert "verify_attention" in named["unified_attention"]
    assert named["not_called_by_any"] == ()


def test_each_kernel_is_lowered_or_has_its_reason(tree: Path) -> None:
    done = run(tree, "--json", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["kernels"]}
    assert rows["copy_kernel"]["reason"] == ""
    assert rows["copy_kernel"]["signature"] == "guessed"
    assert rows["copy_kernel"]["gaps"] == []
    chosen = {(gap["operation"], gap["what"]) for gap in rows["chosen_kernel"]["gaps"]}
    assert chosen == {("arith.fptosi", "an address"), ("arith.cmpf", "a mask")}
    assert "few.py:25" in rows["chosen_kernel"]["gaps"][0]["place"]
    assert "there_is_no_such_name" in rows["wrong_kernel"]["reason"]
    assert "no guessed signature compiles" in rows["wrong_kernel"]["reason"]
    assert "there_is_no_such_module" in rows["lost_kernel"]["reason"]
    assert "importing vllm.deadly" in rows["unborn_kernel"]["reason"]
    assert "exit 7" in rows["unborn_kernel"]["reason"]
    assert "only a launch" in rows["configured.<locals>.inner_kernel"]["reason"]
    assert rows["Held.kernel"]["reason"] == ""
    assert rows["glued_kernel"]["reason"].startswith("gluon")
    assert document["summary"] == {
        "kernels": 8,
        "lowered": 4,
        "guessed": 4,
        "understood": 3,
        "launched": 0,
        "gluon": 1,
        "device_functions": 1,
    }
    assert "vllm.v1.sample.few:copy_kernel" in document["next"]
    assert "vllm.absent:lost_kernel" not in document["next"]


def test_people_read_states_and_a_summary_without_colours(tree: Path) -> None:
    done = run(tree, "--match", "few:c", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "understood  copy_kernel · guessed" in done.stdout
    assert "undecided   chosen_kernel" in done.stdout
    assert "an address: arith.fptosi" in done.stdout
    assert "wrong_kernel" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_nothing_that_matches_is_an_error(tree: Path) -> None:
    done = run(tree, "--match", "no such kernel")
    assert done.returncode == 2
    assert "no kernel's name contains 'no such kernel'" in done.stderr


def test_a_module_of_a_release() -> None:
    done = run("0.33.0", "--match", "gpu.sample.min_p", "--json", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["kernels"]}
    assert rows["_min_p_kernel"]["reason"] == ""
    assert ("arith.cmpf", "a branch") in {
        (gap["operation"], gap["what"]) for gap in rows["_min_p_kernel"]["gaps"]
    }


def test_a_launch_of_the_catalogue_gives_its_signature() -> None:
    match = "v1.worker.block_table:ComputeSlotMappingKernel"
    done = run("0.33.0", "--match", match, "--json", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["kernels"]
    assert row["signature"] == "launched"
    assert "slot mapping, block 16" in row["launches"]
    assert row["undecided"] == []
