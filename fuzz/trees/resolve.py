"""From what a person names to a tree: a release, `installed` or a path, and patches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fuzz.trees.checkout import installed_tree, path_tree
from fuzz.trees.patches import patched_tree
from fuzz.trees.release import DEFAULT_RELEASE, RELEASE_PATTERN, release_tree
from fuzz.trees.tree import Tree, TreeError, default_cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def resolve(
    spec: str | None,
    *,
    patches: Path | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
    repair: bool = False,
) -> Tree:
    """Give the tree that `spec` names, ready to be activated.

    A release is fetched on first use. Every file of a kept tree is compared with its
    manifest at every call. Safe to call from many processes at once.

    Args:
        spec: A release (`0.33.0`), `installed`, or a path to the folder that contains
            `vllm/`. None means the environment's KVFUZZ_VLLM, else `DEFAULT_RELEASE`.
        patches: A folder with a patch series to apply on a copy of the tree.
        cache: Where trees are kept; `default_cache()` if None.
        progress: Told in one line what is happening whenever it takes time.
        repair: Fetch a release anew if its kept tree is damaged.

    Raises:
        TreeError: The tree cannot be had. Says what was given and what to do.
    """
    if spec is None:
        spec = os.environ.get("KVFUZZ_VLLM") or DEFAULT_RELEASE
    cache = cache or default_cache()
    tell = progress or _say_nothing
    if not spec or any(ord(c) < 32 for c in spec) or len(spec) > 4096:
        msg = (
            f"--vllm {spec[:80]!r} is neither a release such as {DEFAULT_RELEASE}, nor "
            "installed, nor a path to the folder that contains vllm/"
        )
        raise TreeError(msg)
    if spec == "installed":
        tree = installed_tree(cache=cache, progress=tell)
    elif RELEASE_PATTERN.fullmatch(spec):
        tree = release_tree(spec, cache=cache, repair=repair, progress=tell)
    else:
        tree = path_tree(spec, cache=cache, progress=tell)
    if patches is not None:
        tree = patched_tree(tree, patches, cache=cache, progress=tell)
    return tree


def _say_nothing(_line: str) -> None:
    """Progress that nobody asked for."""
