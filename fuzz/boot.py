"""Make a process fit to import vLLM without a GPU and without compiled extensions.

Settles, before anything imports vLLM, what vLLM asks of the machine: the platform (by
the version of its distribution), whether Triton works (by a stub driver), threads,
network. Imports nothing of this project: its source is inlined in reproducer scripts.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

PLATFORMS = ("cpu",)
TRITON_MODES = ("jit", "interpret")

# TRITON_CACHE_AUTOTUNING: vLLM's env_override turns it on, and made-up timings would
# enter the user's Triton cache. VLLM_TARGET_DEVICE names the platform from 0.28 on.
# VLLM_PLUGINS="" admits no plugin of the environment, which could change the platform.
# A GPU of this machine is hidden, and torch counts GPUs by NVML, for to count none it
# would start the CUDA driver. That starts a thread, and so does pyarrow's allocator
# (pandas imports it); a process with threads cannot be forked from.
FIXED_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "TRITON_CACHE_AUTOTUNING": "0",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}
# A person who looks for the cause of something may set these otherwise.
DEFAULT_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
}


class KernelLaunchError(RuntimeError):
    """A Triton kernel was launched in a process that cannot run kernels."""


def prepare(*, platform: str, triton: str) -> None:
    """Make this process, and those it starts, fit to import vLLM.

    Call it once, before anything imports vLLM; again with the same arguments, it does
    nothing. No distribution named vllm needs to be installed.

    Args:
        platform: What vLLM is to believe it runs on; one of `PLATFORMS`.
        triton: `jit` gives Triton's real JIT functions over a stub driver, and a launch
            raises `KernelLaunchError`; `interpret` runs kernels in Triton's own
            interpreter on CPU tensors.

    Raises:
        ValueError: An argument is not one of the known values.
        RuntimeError: vLLM was imported before, this process was prepared otherwise, or
            Triton was imported in another mode.
    """
    if platform not in PLATFORMS:
        msg = f"platform {platform!r} is unknown; known: {', '.join(PLATFORMS)}"
        raise ValueError(msg)
    if triton not in TRITON_MODES:
        msg = f"triton mode {triton!r} is unknown; known: {', '.join(TRITON_MODES)}"
        raise ValueError(msg)
    wanted = (platform, triton)
    done = _prepared_as()
    if done == wanted:
        return
    if done is not None:
        msg = (
            f"this process was prepared for platform={done[0]!r}, triton={done[1]!r} "
            f"and cannot become platform={platform!r}, triton={triton!r}: "
            "start another process for it"
        )
        raise RuntimeError(msg)
    if "vllm" in sys.modules:
        msg = (
            "vllm is imported already, and it fixed its platform and its Triton at "
            "that moment: call prepare() before the first import of vllm"
        )
        raise RuntimeError(msg)
    _set_triton_mode(triton)
    os.environ.update(FIXED_ENVIRONMENT)
    for name, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Some releases (0.33.0) configure their logging only when a server starts, and
    # Python prints warnings of loggers that nobody configured.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    _declare_cpu_distribution()
    _hide_broken_torchvision()
    _refuse_nvml()
    _describe_missing_gpu()
    _install_stub_driver()
    if triton == "jit":
        _refuse_launches()
    sys.modules["triton"].kvfuzz_prepared = wanted  # type: ignore[attr-defined]


def _prepared_as() -> tuple[str, str] | None:
    """The arguments of the call that prepared this process, noted on Triton itself."""
    prepared: tuple[str, str] | None = getattr(
        sys.modules.get("triton"), "kvfuzz_prepared", None
    )
    return prepared


def _set_triton_mode(mode: str) -> None:
    """Choose JIT or interpreter, which Triton asks the environment at each decorator.

    Its own library functions are decorated when it is imported, so that the mode of a
    process is fixed from then on.
    """
    wanted = "1" if mode == "interpret" else "0"
    if "triton" in sys.modules:
        import triton

        if triton.knobs.runtime.interpret != (mode == "interpret"):
            msg = (
                f"triton is imported already with TRITON_INTERPRET="
                f"{os.environ.get('TRITON_INTERPRET', '')!r}, which does not suit mode "
                f"{mode!r}: call prepare() before the first import of triton"
            )
            raise RuntimeError(msg)
    os.environ["TRITON_INTERPRET"] = wanted


def _declare_cpu_distribution() -> None:
    """Answer "which version of vllm is installed" with one that ends in `+cpu`.

    Up to 0.27 that suffix alone makes vLLM choose its CPU platform
    (`vllm/platforms/__init__.py`, `cpu_platform_plugin`), and in every release it keeps
    the CUDA platform from being detected beside it on a machine with a GPU. Where the
    distribution on `sys.path` does not say so, one in a folder of its own does, for
    this process and (through PYTHONPATH) for those that vLLM starts.
    """
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "0.0.0"
    if "cpu" in version:
        return
    version = version.partition("+")[0] + "+cpu"
    folder = Path(tempfile.mkdtemp(prefix="kvfuzz-boot-"))
    atexit.register(_remove_if_ours, folder, os.getpid())
    record = folder / f"vllm-{version}.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
    )
    sys.path.insert(0, str(folder))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), *([inherited] if inherited else [])]
    )
    importlib.invalidate_caches()


def _remove_if_ours(folder: Path, owner_pid: int) -> None:
    """Remove a temporary folder when its maker ends, not when a fork of it does."""
    if os.getpid() == owner_pid:
        shutil.rmtree(folder, ignore_errors=True)


def _hide_broken_torchvision() -> None:
    """Make a torchvision that cannot be imported look absent.

    One built for another torch fails with "operator torchvision::nms does not exist"
    inside transformers, and with it the import of vLLM.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError, AttributeError):
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def _refuse_nvml() -> None:
    """Make NVIDIA's management library look absent, as on a machine without a GPU.

    To count GPUs by it starts a thread that stays. 0.20.1 does so whatever its own
    version says (`vllm/platforms/__init__.py`, `cuda_platform_plugin`).
    """
    original = ctypes.CDLL.__init__

    @functools.wraps(original)
    def load(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        if "libnvidia-ml" in str(name):
            msg = f"{name} is kept from this process, which is to see no GPU"
            raise OSError(msg)
        original(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = load  # type: ignore[method-assign]


def _describe_missing_gpu() -> None:
    """Cap torch's threads, and answer the questions about a GPU that imports ask.

    The flash-linear-attention operations ask torch for name and capability of GPU 0 as
    soon as Triton's driver says CUDA (`vllm/model_executor/layers/fla/ops/utils.py` in
    0.20.1). `torch.cuda.is_available()` goes on saying the truth: none is visible.
    """
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.cuda.get_device_name = lambda device=None: "NVIDIA H100 (a stub)"  # noqa: ARG005
        torch.cuda.get_device_capability = lambda device=None: (9, 0)  # noqa: ARG005


def absent_backend() -> Any:
    """A Triton backend that compiles for no target and whose driver is not there."""
    from triton.backends import Backend
    from triton.backends.compiler import BaseBackend

    class InactiveDriver:
        """A driver that is not there."""

        @staticmethod
        def is_active() -> bool:
            return False

    class NoTarget(BaseBackend):  # type: ignore[misc]
        """A compiler for no target at all."""

        @staticmethod
        def supports_target(_target: Any) -> bool:
            return False

    return Backend(compiler=NoTarget, driver=InactiveDriver)


def _install_stub_driver() -> None:
    """Give Triton exactly one active driver, of a GPU that nobody has.

    vLLM turns Triton off unless it counts one active driver at import
    (`vllm/triton_utils/importing.py`); from 0.24 on it also wants a backend named
    `cpu` when its own version says `cpu`. That entry compiles for no target.
    """
    import torch
    import triton
    from triton.backends import Backend, backends
    from triton.backends.compiler import GPUTarget

    class DeviceProperties:
        """Bytes of shared memory of the described GPU (CUDA, capability 9.0)."""

        @staticmethod
        def get_device_properties(_device: int) -> dict[str, int]:
            return {"max_shared_mem": 232448}

    class StubDriver:
        """What JIT functions, the autotuner and vLLM's modules ask of a driver."""

        utils = DeviceProperties

        @staticmethod
        def is_active() -> bool:
            return True

        @staticmethod
        def get_current_target() -> Any:
            return GPUTarget("cuda", 90, 32)

        @staticmethod
        def get_current_device() -> int:
            return 0

        @staticmethod
        def get_current_stream(_device: int) -> int:
            return 0

        @staticmethod
        def get_active_torch_device() -> torch.device:
            return torch.device("cpu")

        @staticmethod
        def get_benchmarker() -> Callable[..., list[float]]:
            # Timings mean nothing here: all alike, the first configuration wins.
            return lambda _call, quantiles=(0.5, 0.2, 0.8), **_: [1.0] * len(quantiles)

    absent = absent_backend()
    for name, backend in list(backends.items()):
        backends[name] = Backend(compiler=backend.compiler, driver=absent.driver)
    backends["nvidia"] = Backend(
        compiler=backends["nvidia"].compiler, driver=StubDriver
    )
    backends.setdefault("cpu", absent)
    triton.runtime.driver.set_active(StubDriver())


def _refuse_launches() -> None:
    """Make every launch of a JIT function raise; the original is at `__wrapped__`."""
    from triton.runtime.jit import JITFunction

    @functools.wraps(JITFunction.run)
    def run(self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        kernel = f"{self.fn.__module__}.{self.fn.__qualname__}"
        msg = (
            f"kernel {kernel} was launched, and this process (platform cpu, triton "
            "jit) has no GPU to run it on: launch it inside checked_launches(), or in "
            'a process prepared with triton="interpret", or on a CUDA machine'
        )
        raise KernelLaunchError(msg)

    JITFunction.run = run
