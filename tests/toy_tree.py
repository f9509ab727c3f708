"""A vLLM of two functions, and runs of `pytest fuzz/` on it with the toy target.

The engine is tested as people use it: as a command, on a tree that takes no time to
import, with stores of its own.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGETS = ROOT / "tests" / "targets_folder"

GOOD = "def cdiv(a, b):\n    return -(a // -b)\n"
# Wrong from 60 tokens on, where the last block is not full.
BROKEN = "def cdiv(a, b):\n    return -(a // -b) if a < 60 else a // b\n"


def write_tree(folder: Path, *, cdiv: str) -> Path:
    """A tree that can be given as `--vllm`."""
    utils = folder / "site-packages" / "vllm" / "utils"
    utils.mkdir(parents=True)
    (utils.parent / "__init__.py").write_text("")
    (utils / "__init__.py").write_text("")
    (utils / "math_utils.py").write_text(cdiv)
    return folder / "site-packages"


@dataclass(frozen=True, kw_only=True)
class Home:
    """The places that runs of one test write to, and the toy's folder of targets."""

    folder: Path
    targets: Path = TARGETS

    @property
    def cases(self) -> Path:
        return self.folder / "cases"

    @property
    def ledger(self) -> Path:
        return self.folder / "known.toml"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    @property
    def latest(self) -> Path:
        return self.reports / "latest"

    def environment(self) -> dict[str, str]:
        """What a command needs to use these places."""
        if not self.ledger.exists():
            self.ledger.parent.mkdir(parents=True, exist_ok=True)
            self.ledger.write_text("")
        return os.environ | {
            "KVFUZZ_CASES": str(self.cases),
            "KVFUZZ_LEDGER": str(self.ledger),
            "KVFUZZ_REPORTS": str(self.reports),
            "COLUMNS": "100",
        }

    def command(self, tree: Path, *options: str) -> list[str]:
        """`pytest fuzz/` on a tree, only the toy's tests and the canary."""
        return [
            *(sys.executable, "-m", "pytest", str(ROOT / "fuzz")),
            *("-k", "toy or canary or saved", "--targets", str(self.targets)),
            *("--vllm", str(tree), "-p", "no:cacheprovider", *options),
        ]

    def run(self, tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self.command(tree, *options),
            env=self.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
