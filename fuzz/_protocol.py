"""What an isolation, its zygote and their children say to each other.

Orders and reports travel as packets on the zygote's control socket, requests and
answers as lines on a socket of the child.
"""

from pathlib import Path
from typing import Self

import msgspec

from fuzz.edits import Edit, Replacement, SourceEdit
from fuzz.trees import Tree

# Longer reports than one packet of the control socket are cut.
PACKET_BYTES = 60_000


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a zygote is started with, on its command line."""

    control_fd: int
    parent_pid: int
    tree: Tree
    platform: str
    triton: str
    target_folders: tuple[str, ...]

    def text(self) -> str:
        """Its JSON; paths are strings there."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The setup that `text` gave."""

        def path(kind: type[Path], value: str) -> Path:
            return kind(value)

        return msgspec.json.decode(text, type=cls, dec_hook=path)


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The tree is activated, or a target imported for a trial."""


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag="forked"):
    """A child is there; its id is that of its process group too.

    The limits of a case are those that its target declares.
    """

    pid: int
    timeout_s: float
    memory_bytes: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A child is gone, with all that it started; its exit code, minus the signal."""

    pid: int
    exit_code: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The tree could not be activated, or the target not imported: a traceback."""

    text: str


Report = Ready | Forked | Ended | Failed


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Kill the child; where a target is named, fork another that can run it.

    Two descriptors travel with a target: the new child's socket, and its stderr.

    Attributes:
        trial: Only import the target, whatever runtime it needs, and say when that is
            over; no descriptors travel.
    """

    target: str | None
    trial: bool = False


class WireEdit(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the two; a union of dataclasses has no JSON form of its own."""

    source: SourceEdit | None
    replacement: Replacement | None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One case for a child.

    Attributes:
        case: Its JSON.
        edits: Changes to the tree while it runs.
    """

    target: str
    case: str
    edits: tuple[WireEdit, ...]


def wire_edits(edits: tuple[Edit, ...]) -> tuple[WireEdit, ...]:
    """Edits in their JSON form."""
    return tuple(
        WireEdit(source=edit, replacement=None)
        if isinstance(edit, SourceEdit)
        else WireEdit(source=None, replacement=edit)
        for edit in edits
    )


def edits_of(wired: tuple[WireEdit, ...]) -> tuple[Edit, ...]:
    """Edits from their JSON form."""
    found = (wire.source or wire.replacement for wire in wired)
    return tuple(edit for edit in found if edit is not None)
