"""The command for people: what trees are kept, fetch one, say where one is."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from fuzz.trees.release import DEFAULT_RELEASE
from fuzz.trees.resolve import resolve
from fuzz.trees.tree import Tree, TreeError, default_cache


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0, or 2 when a tree cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.trees",
        description="The vLLM trees that are tested. TREE is a release, `installed`, "
        f"or a path; by default KVFUZZ_VLLM, else {DEFAULT_RELEASE}.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="show the trees that are kept on this machine")
    for name, purpose in (
        ("fetch", "fetch a tree, anew if what is kept is damaged, and check it"),
        ("path", "print the folder to put on PYTHONPATH, fetching on first use"),
    ):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("tree", nargs="?", metavar="TREE")
        command.add_argument(
            "--patches", type=Path, metavar="DIR", help="apply the patch series in DIR"
        )
    options = parser.parse_args(arguments)
    try:
        if options.command == "list":
            _list(default_cache())
            return 0
        tree = resolve(
            options.tree,
            patches=options.patches,
            progress=_tell,
            repair=options.command == "fetch",
        )
    except TreeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.command == "path":
        for note in tree.notes:
            _tell(note)
        print(tree.root)
    else:
        _show(tree)
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(tree: Tree) -> None:
    print(f"vLLM {tree.version} ({tree.kind}), SHA-256 {tree.digest[:16]}")
    print(f"at {tree.root}")
    for note in tree.notes:
        print(note)


def _list(cache: Path) -> None:
    """Print one line for each kept tree; their files are not checked for that."""
    print(f"kept in {cache} (KVFUZZ_CACHE moves it):")
    found = False
    for kind in ("trees", "patched", "paths"):
        if not (cache / kind).is_dir():
            continue
        for folder in sorted((cache / kind).iterdir()):
            package = folder / "site-packages" / "vllm"
            if folder.name.startswith(".") or not package.exists():
                continue
            found = True
            if package.is_symlink():
                print(f"  path     {package.resolve().parent}")
            else:
                size_mb = (
                    sum(
                        entry.stat().st_size
                        for entry in folder.rglob("*")
                        if entry.is_file() and not entry.is_symlink()
                    )
                    // 10**6
                )
                default = " (default)" if folder.name == DEFAULT_RELEASE else ""
                word = "release" if kind == "trees" else "patched"
                print(f"  {word}  {folder.name}{default}, {size_mb} MB")
    if not found:
        print("  none yet: python -m fuzz.trees fetch")


if __name__ == "__main__":
    # A reader that closes the pipe early (head) ends this as it ends any filter.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
