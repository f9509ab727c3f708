"""Apply a patch series on a copy of a tree, and say what it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.trees.tree import TreeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fuzz.trees.tree import Tree


def patched_tree(
    tree: Tree, series: Path, *, cache: Path, progress: Callable[[str], None]
) -> Tree:
    """Stand-in until the next commit."""
    raise TreeError(f"patches are not there yet: {tree} {series} {cache} {progress}")
