"""Read which patches a folder holds, in the order in which they apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.trees.tree import TreeError

if TYPE_CHECKING:
    from pathlib import Path


def read_series(folder: Path) -> list[Path]:
    """List the patches of a series, in the order they apply.

    Raises:
        TreeError: There is no patch, or `series` names what is not there.
    """
    if not folder.is_dir():
        msg = (
            f"--vllm-patches {folder} is not a folder; expected is one with a file "
            "`series` or with *.patch files"
        )
        raise TreeError(msg)
    listing = folder / "series"
    if listing.is_file():
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition("#")[0].strip() for line in lines]
        names = [name.removesuffix(" -p1") for name in names if name]
    else:
        names = sorted(p.name for p in folder.glob("*.patch"))
    patches = [folder / name for name in names]
    if not patches:
        msg = (
            f"there is no patch in {folder}: add *.patch files, or name them in series"
        )
        raise TreeError(msg)
    for name, patch in zip(names, patches, strict=True):
        inside = patch.resolve().is_relative_to(folder.resolve())
        if not inside or not patch.is_file():
            msg = (
                f"{listing} names {name!r}, and there is no such file in {folder}: a "
                "line is the name of a patch there (-p1 is understood, no other option)"
            )
            raise TreeError(msg)
    return patches
