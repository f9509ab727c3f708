"""A tree of a few lines for the toy target of `targets_folder`, and its cases.

Here too: finding the processes that a test started, by a mark in their environment.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.trees import Tree, resolve

TOYS = Path(__file__).parent / "targets_folder"

FILES = {
    "__init__.py": '__version__ = "0.0.1"\n',
    "_version.py": '__version__ = version = "0.0.1"\n',
    "utils/__init__.py": "",
    "utils/math_utils.py": "def cdiv(a, b):\n    return -(-a // b)\n",
}


def toy_tree(folder: Path) -> Tree:
    """Write the tree below a folder; its cache is there too."""
    root = folder / "site-packages"
    for name, content in FILES.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return resolve(str(root), cache=folder / "cache")


def case(deed: str = "divide", *, tokens: int = 33) -> str:
    """A case's JSON, made without the toy's own types."""
    fields = {
        "format_version": 1,
        "origin": "contract",
        "tokens": tokens,
        "block_size": 16,
        "deed": deed,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def marked(mark: Path) -> set[int]:
    """Ids of the living processes whose environment holds `KVFUZZ_TEST_MARK=mark`."""
    wanted = f"KVFUZZ_TEST_MARK={mark}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in environment and alive(int(entry.name)):
            found.add(int(entry.name))
    return found


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Wait for something to become true, and fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.02)
