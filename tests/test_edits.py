"""Edits of functions that others keep under names of their own."""

import importlib
from pathlib import Path

import pytest

from fuzz.edits import SourceEdit, applied

HOME = """
class Launcher:
    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self):
        return self.kernel()


def kernel():
    return "as it is"


launch = Launcher(kernel)
"""
EDIT = SourceEdit(
    modules=("edits_home.ops",),
    function="kernel",
    old="as it is",
    new="edited",
)


def test_an_edit_reaches_importers_and_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "edits_home"
    package.mkdir()
    (package / "__init__.py").write_text("from edits_home.ops import kernel\n")
    (package / "ops.py").write_text(HOME)
    monkeypatch.syspath_prepend(str(tmp_path))
    home = importlib.import_module("edits_home")
    with applied(EDIT):
        assert home.kernel() == home.ops.launch() == "edited"
    assert home.kernel() == home.ops.launch() == "as it is"
