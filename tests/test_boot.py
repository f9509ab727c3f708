"""A prepared process: real vLLM on its CPU platform, with Triton's real classes.

Each case is a process of its own, since a process is prepared once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import boot
from fuzz.trees import resolve

ROOT = Path(__file__).resolve().parent.parent

SUBJECT = """
import importlib.util, json, sys
import vllm.v1.attention.backends.gdn_attn
import vllm.v1.core.kv_cache_utils
import vllm.v1.worker.block_table
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.utils import torch_utils
from vllm.v1.attention.ops import triton_unified_attention
import torch
kernels = vars(triton_unified_attention).items()
kernel = [k for name, k in kernels if name.startswith("kernel_unified_attention")][0]
print(json.dumps({
    "cpu": current_platform.is_cpu(),
    "triton": HAS_TRITON,
    "kernel": type(kernel).__name__,
    "pin": getattr(torch_utils, "PIN_MEMORY", False),
    "threads": torch.get_num_threads(),
}))
"""

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def fill(out_ptr, value, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value)
"""


def run(
    program: str, *, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def prepared(*, triton: str) -> str:
    return f"from fuzz import boot\nboot.prepare(platform='cpu', triton='{triton}')\n"


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(
    ("release", "triton", "kernel"),
    [
        ("0.20.1", "jit", "JITFunction"),
        ("0.33.0", "jit", "JITFunction"),
        ("0.33.0", "interpret", "InterpretedFunction"),
    ],
)
def test_vllm_believes_in_a_cpu_and_in_triton(
    release: str, triton: str, kernel: str
) -> None:
    program = (
        "from fuzz.trees import activate, resolve\n"
        f"activate(resolve('{release}'), triton='{triton}')\n"
    )
    done = run(program + SUBJECT)
    assert done.stdout == (
        f'{{"cpu": true, "triton": true, "kernel": "{kernel}", "pin": false, '
        '"threads": 1}\n'
    ), done.stderr
    assert done.stderr == ""


@pytest.mark.subject
@pytest.mark.network
def test_the_source_alone_prepares_for_a_vllm_that_somebody_installed(
    tmp_path: Path,
) -> None:
    # As in a reproducer: nothing of this project on the path, a GPU's version string.
    shutil.copy(boot.__file__, tmp_path / "inlined.py")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "vllm").symlink_to(resolve("0.20.1").root / "vllm")
    record = installed / "vllm-0.20.1+cu130.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.20.1+cu130\n")
    program = (
        "import sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(installed)!r}]\n"
        "import inlined\n"
        "inlined.prepare(platform='cpu', triton='jit')\n"
        "assert 'fuzz' not in sys.modules\n"
    )
    done = run(program + SUBJECT, cwd=tmp_path)
    assert '"cpu": true, "triton": true, "kernel": "JITFunction"' in done.stdout, (
        done.stderr
    )


@pytest.mark.parametrize("found", ["0.99.0", "1!2.0.dev3+gabc.cu126", "0.20.1+cpu", ""])
def test_the_version_ends_in_cpu_whatever_is_installed(
    tmp_path: Path, found: str
) -> None:
    if found:
        record = tmp_path / f"vllm-{found}.dist-info" / "METADATA"
        record.parent.mkdir()
        record.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found}\n")
    child = "from importlib.metadata import version; print(version('vllm'))"
    done = run(
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        + prepared(triton="jit")
        + "import subprocess\n"
        "from importlib.metadata import version\n"
        "print(version('vllm'), flush=True)\n"
        f"command = [sys.executable, '-c', {child!r}]\n"
        "places = [p for p in sys.path if 'kvfuzz-boot' in p]\n"
        "print(places[0] if places else '', flush=True)\n"
        "if places: subprocess.run(command, check=True)\n"
    )
    assert done.returncode == 0, done.stderr
    mine, place, *child_says = done.stdout.splitlines()
    expected = (found or "0.0.0").partition("+")[0] + "+cpu"
    assert mine == expected
    if found.endswith("+cpu"):
        assert place == ""
    else:
        assert child_says == [expected]
        assert not Path(place).exists(), "the temporary folder outlived its process"


def test_a_launch_says_that_nothing_can_run_here(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNEL)
    done = run(
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        + prepared(triton="jit")
        + "import torch, kernels\n"
        "try:\n"
        "    kernels.fill[(2,)](torch.zeros(8), 3.0, BLOCK=4)\n"
        "except boot.KernelLaunchError as error:\n"
        "    print(error)\n"
        "print(type(kernels.fill).__name__)\n"
        "from triton.runtime.jit import JITFunction\n"
        "print(JITFunction.run.__wrapped__.__qualname__)\n"
    )
    message, kind, original = done.stdout.splitlines() or [done.stderr] * 3
    assert message.startswith("kernel kernels.fill was launched, and this process")
    assert "has no GPU to run it on" in message
    assert "checked_launches()" in message
    assert 'triton="interpret"' in message
    assert (kind, original) == ("JITFunction", "JITFunction.run")


def test_the_interpreter_runs_kernels_on_cpu_tensors(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNEL)
    done = run(
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        + prepared(triton="interpret")
        + "import torch, kernels\n"
        "out = torch.zeros(9)\n"
        "kernels.fill[(2,)](out, 3.0, BLOCK=4)\n"
        "print(out.tolist())\n"
    )
    assert done.stdout == f"{[3.0] * 8 + [0.0]}\n", done.stderr


def test_a_kernel_still_lowers_for_the_stub_gpu(tmp_path: Path) -> None:
    # Triton picks the compiler by target: one more backend must not confuse it.
    done = run(
        prepared(triton="jit") + "import triton\n"
        "from triton.compiler.compiler import make_backend\n"
        "target = triton.runtime.driver.active.get_current_target()\n"
        "print(type(make_backend(target)).__name__, target.backend, target.arch)\n"
        "active = [n for n, b in triton.backends.backends.items()\n"
        "          if b.driver.is_active()]\n"
        "print(active, 'cpu' in triton.backends.backends)\n"
    )
    assert done.stdout == "CUDABackend cuda 90\n['nvidia'] True\n", done.stderr


def test_unknown_arguments_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"platform 'tpu' is unknown; known: cpu"):
        boot.prepare(platform="tpu", triton="jit")
    with pytest.raises(ValueError, match=r"'aot' is unknown; known: jit, interpret"):
        boot.prepare(platform="cpu", triton="aot")


def test_a_process_is_prepared_once() -> None:
    done = run(
        prepared(triton="jit") + prepared(triton="jit") + "try:\n"
        "    boot.prepare(platform='cpu', triton='interpret')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert "was prepared for platform='cpu', triton='jit'" in done.stdout, done.stderr
    assert "start another process" in done.stdout


def test_vllm_imported_too_early_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    done = run(
        f"import sys; sys.path.append({str(tmp_path)!r}); import vllm\n"
        + prepared(triton="jit")
    )
    assert done.returncode == 1
    assert "call prepare() before the first import of vllm" in done.stderr


def test_triton_imported_too_early_for_the_interpreter_is_an_error() -> None:
    done = run("import triton\n" + prepared(triton="interpret"), TRITON_INTERPRET="0")
    assert done.returncode == 1
    assert "does not suit mode 'interpret'" in done.stderr
    assert "before the first import of triton" in done.stderr


def test_an_environment_that_asks_for_the_interpreter_does_not_reach_jit() -> None:
    done = run(
        prepared(triton="jit") + "import triton\n"
        "print(triton.knobs.runtime.interpret)\n",
        TRITON_INTERPRET="1",
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')", "None"),
        ("from torchvision import absent", "None"),
        ("ops = 1", "ModuleSpec"),
    ],
)
def test_a_broken_torchvision_looks_absent(
    tmp_path: Path, content: str, seen: str
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(content)
    done = run(
        f"import sys; sys.path.insert(1, {str(tmp_path)!r})\n"
        + prepared(triton="jit")
        + "import importlib.util\n"
        "print(importlib.util.find_spec('torchvision'))\n"
    )
    assert done.stdout.startswith(seen), done.stderr


def test_nothing_reaches_the_network_or_the_users_triton_cache() -> None:
    names = ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "TRITON_CACHE_AUTOTUNING")
    done = run(
        prepared(triton="jit") + "import os\n"
        f"print([os.environ[name] for name in {names}])\n",
        HF_HUB_OFFLINE="0",
        TRITON_CACHE_AUTOTUNING="1",
    )
    assert done.stdout == "['1', '1', '0']\n", done.stderr


def test_a_gpu_of_the_machine_stays_closed_and_no_thread_is_started() -> None:
    # On a machine with a GPU, torch's own count would open it and start a thread.
    done = run(
        prepared(triton="jit") + "import os, pathlib, torch\n"
        "print(torch.cuda.is_available(), torch.cuda.device_count())\n"
        "print([os.environ['CUDA_VISIBLE_DEVICES']])\n"
        "files = map(os.path.realpath, pathlib.Path('/proc/self/fd').iterdir())\n"
        "print([each for each in files if each.startswith('/dev/nvidia')])\n"
        "print(len(list(pathlib.Path('/proc/self/task').iterdir())))\n",
        CUDA_VISIBLE_DEVICES="0",
    )
    assert done.stdout == "False 0\n['']\n[]\n1\n", done.stderr


def test_an_import_of_pyarrow_starts_no_thread() -> None:
    # Its allocator reads this variable when the library is loaded.
    done = run(
        prepared(triton="jit")
        + "import os\nprint(os.environ['JE_ARROW_MALLOC_CONF'])\n"
    )
    assert done.stdout == "background_thread:false\n", done.stderr


def test_the_library_that_counts_gpus_looks_absent() -> None:
    done = run(
        prepared(triton="jit") + "import ctypes\n"
        "print(ctypes.CDLL(None).getpid() > 0)\n"
        "ctypes.CDLL('libnvidia-ml.so.1')\n"
    )
    assert done.stdout == "True\n"
    assert "OSError: libnvidia-ml.so.1 is kept from this process" in done.stderr
