"""Trees that are already on this machine: checkouts, unpacked trees, what is installed.

Of a checkout only `vllm/` is exposed, by a link below a `site-packages` folder of ours:
so its other folders stay off `sys.path`, edits are seen by the next run, and Hypothesis
does not take vLLM for local code and mine it for constants.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.trees.tree import Tree, TreeError, declare, digest_of, locked, measure, staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuzz.trees.tree import Kind


def path_tree(spec: str, *, cache: Path, progress: Callable[[str], None]) -> Tree:
    """Give the tree of a checkout or an unpacked release.

    Args:
        spec: The folder that contains `vllm/`.
        cache: Where the folder with the link is kept.
        progress: Told when another process makes us wait.

    Raises:
        TreeError: There is no such folder, or no vLLM in it.
    """
    folder = Path(os.path.expanduser(spec)).absolute()  # noqa: PTH111 - never raises
    asked = f"--vllm {spec!r} names {folder}"
    wanted = "the folder that contains vllm/ (a checkout or an unpacked wheel)"
    # os.path answers no where the name itself is impossible, and pathlib raises.
    if os.path.isfile(folder):  # noqa: PTH113
        msg = (
            f"{asked}, a file, and {wanted} is expected: unpack it and name the folder"
        )
        raise TreeError(msg)
    if not os.path.isdir(folder):  # noqa: PTH112
        msg = (
            f"{asked}, which does not exist; expected is {wanted}, a release such as "
            "0.33.0, or installed"
        )
        raise TreeError(msg)
    if not (folder / "vllm" / "__init__.py").is_file():
        hint = "name a folder with vllm/__init__.py in it"
        if folder.name == "vllm" and (folder / "__init__.py").is_file():
            hint = f"name {folder.parent}"
        msg = f"{asked}, and there is no vllm/ in it; expected is {wanted}: {hint}"
        raise TreeError(msg)
    return _exposed(folder, spec=spec, kind="path", cache=cache, progress=progress)


def installed_tree(*, cache: Path, progress: Callable[[str], None]) -> Tree:
    """Give the tree that `import vllm` would use in this environment.

    Raises:
        TreeError: No vLLM is installed.
    """
    try:
        found = importlib.util.find_spec("vllm")
    except ValueError:  # a module without a spec was put in its place
        found = None
    places = list(found.submodule_search_locations or ()) if found else []
    if not places or not Path(places[0], "__init__.py").is_file():
        msg = (
            "--vllm installed was asked for, and `import vllm` finds nothing in this "
            "environment: install it (pip install vllm), or name a release or a path"
        )
        raise TreeError(msg)
    folder = Path(places[0]).parent
    if folder.name not in ("site-packages", "dist-packages"):
        return _exposed(
            folder, spec="installed", kind="installed", cache=cache, progress=progress
        )
    return Tree(
        spec="installed",
        version=version_of(folder),
        kind="installed",
        root=folder,
        patches=(),
        digest=digest_of(measure(folder, suffixes=(".py",))),
        notes=(),
    )


def version_of(folder: Path) -> str:
    """The version that `folder/vllm` says it has, or `unknown`.

    `vllm/_version.py` is written by vLLM's build; a checkout that was never built has
    none, and an unpacked wheel has a dist-info beside it.
    """
    version_file = folder / "vllm" / "_version.py"
    if version_file.is_file():
        try:
            module = ast.parse(version_file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            return "unknown"
        for statement in module.body:
            match statement:
                case ast.Assign(targets=targets, value=ast.Constant(value=str(value))):
                    names = {t.id for t in targets if isinstance(t, ast.Name)}
                    if names & {"version", "__version__"}:
                        return value
    for record in sorted(folder.glob("vllm-*.dist-info")):
        return record.name.removeprefix("vllm-").removesuffix(".dist-info")
    return "unknown"


def _exposed(
    folder: Path,
    *,
    spec: str,
    kind: Kind,
    cache: Path,
    progress: Callable[[str], None],
) -> Tree:
    """Link `folder/vllm` below a `site-packages` of ours, by place and version."""
    package = (folder / "vllm").resolve()
    version = version_of(folder)
    key = hashlib.sha256(f"{package}\0{version}".encode()).hexdigest()[:16]
    target = cache / "paths" / key
    root = target / "site-packages"
    if not root.is_dir():
        with locked(cache, f"path-{key}", progress=progress):
            if not root.is_dir():
                with staged(target, progress=progress) as staging:
                    ours = staging / "ready" / "site-packages"
                    ours.mkdir(parents=True)
                    (ours / "vllm").symlink_to(package, target_is_directory=True)
                    declare(ours, _plain(version))
    if (root / "vllm").resolve() != package:
        msg = (
            f"{root}/vllm is expected to lead to {package} and leads elsewhere: "
            f"remove {target} and run again"
        )
        raise TreeError(msg)
    return Tree(
        spec=spec,
        version=version,
        kind=kind,
        root=root,
        patches=(),
        digest=digest_of(measure(root, suffixes=(".py",))),
        notes=(),
    )


def _plain(version: str) -> str:
    """A version that is safe as a part of a folder's name."""
    safe = version.replace("+", "").replace(".", "").replace("-", "").isalnum()
    return version if safe else "unknown"
