"""Make a process import vLLM from a tree, on the platform that it is to believe in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.trees.tree import TreeError, default_cache

if TYPE_CHECKING:
    from fuzz.trees.tree import Tree


def activate(tree: Tree, *, platform: str = "cpu", triton: str = "jit") -> None:
    """Put a tree first on `sys.path` and prepare the process, before vLLM's import.

    Processes that vLLM itself starts (it inspects model classes in one) see the same
    tree through PYTHONPATH. Activating a tree again in the same way does nothing.

    Args:
        tree: What `resolve` gave.
        platform: See `fuzz.boot.prepare`.
        triton: See `fuzz.boot.prepare`.

    Raises:
        TreeError: vLLM is imported already, from another tree.
        ValueError: Unknown platform or mode.
        RuntimeError: The process was prepared otherwise.
    """
    from fuzz import boot

    imported = sys.modules.get("vllm")
    if imported is not None:
        place = Path(imported.__file__ or "").parent.parent
        if place != tree.root:
            msg = (
                f"vllm is imported already from {place}, and the tree {tree.spec} is "
                f"at {tree.root}: a process has one tree, start another for it"
            )
            raise TreeError(msg)
    else:
        _put_first(tree.root)
    # What vLLM remembers of model classes belongs to the tree it saw them in.
    os.environ["VLLM_CACHE_ROOT"] = str(default_cache() / "vllm" / tree.digest[:16])
    boot.prepare(platform=platform, triton=triton)


def _put_first(root: Path) -> None:
    """Put a tree before all others, here and in processes started from here.

    The environment's own `site-packages` (`--vllm installed`) stays where it is: moved
    to the front it would hide modules of the standard library.
    """
    place = str(root)
    if _is_environment(root):
        return
    if place in sys.path:
        sys.path.remove(place)
    sys.path.insert(0, place)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [p for p in inherited if p and p != place]
    os.environ["PYTHONPATH"] = os.pathsep.join([place, *others])


def _is_environment(root: Path) -> bool:
    """Whether a folder is where this interpreter's packages are installed."""
    import site
    import sysconfig

    own = {*site.getsitepackages(), site.getusersitepackages()}
    own |= {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return str(root) in own
