"""vLLM trees: fetch, verify, patch and activate the Python files that are under test.

A tree is a folder named `site-packages` that contains `vllm/`; it comes from a release,
from what is installed, or from a path. Nothing here imports torch until `activate`.
"""

from fuzz.trees.activate import activate
from fuzz.trees.release import DEFAULT_RELEASE
from fuzz.trees.resolve import resolve
from fuzz.trees.tree import Tree, TreeError

__all__ = ["DEFAULT_RELEASE", "Tree", "TreeError", "activate", "resolve"]
