"""Small stand-ins for vLLM: packages, wheels, and the environment that pip sees.

They let the fetching of trees be tested in milliseconds and without a network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

FILES = {
    "vllm/__init__.py": "from vllm.window import first_column\n",
    "vllm/_version.py": "__version__ = version = '9.9.1'\n",
    "vllm/window.py": (
        "WIDTH = 4\n"
        "\n"
        "\n"
        "def first_column(length: int, block_size: int) -> int:\n"
        "    return (length - 1) // block_size\n"
        "\n"
        "\n"
        "class Table:\n"
        "    def row(self, request: int) -> int:\n"
        "        return request * WIDTH\n"
    ),
    "vllm/kernels/configs/tuned.json": "{}\n",
}


def write_package(folder: Path, *, files: dict[str, str] = FILES) -> Path:
    """Write the files below a folder, and return the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def write_wheel(
    folder: Path,
    *,
    version: str = "9.9.1",
    files: dict[str, str] = FILES,
    record_changes: dict[str, str | None] | None = None,
) -> Path:
    """Build a wheel of a made-up vLLM for linux x86-64.

    Args:
        folder: Where to write it.
        version: Its version.
        files: Contents by name.
        record_changes: Hashes that RECORD is to have instead of the true ones, by
            name; None leaves the name out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = f"vllm-{version}.dist-info"
    tag = "cp38-abi3-manylinux_2_28_x86_64"
    contents = {
        **files,
        "vllm/_C.abi3.so": "compiled\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    hashes: dict[str, str | None] = {n: _hash(t) for n, t in contents.items()}
    hashes |= record_changes or {}
    record = "".join(f"{n},{h},1\n" for n, h in hashes.items() if h is not None)
    wheel = folder / f"vllm-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def offline_environment(*, index: Path, cache: Path) -> dict[str, str]:
    """The variables that make pip look only at a folder of wheels."""
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "KVFUZZ_CACHE": str(cache),
    }


def _hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return "sha256=" + digest.decode().rstrip("=")
