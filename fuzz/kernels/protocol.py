"""What the survey of kernels and its worker processes say to each other, in lines."""

from pathlib import Path
from typing import Self

import msgspec

from fuzz.kernels.sources import SourceKernel
from fuzz.trees import Tree


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is started with, on its command line."""

    channel_fd: int
    tree: Tree

    def text(self) -> str:
        """Its JSON; paths are strings there."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The setup that `text` gave."""

        def path(kind: type[Path], value: str) -> Path:
            return kind(value)

        return msgspec.json.decode(text, type=cls, dec_hook=path)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A module to import, and its kernels to lower; or launches to make.

    Attributes:
        launching: Of a module of the catalogue, the names of kernels that matter.
    """

    module: str
    kernels: tuple[SourceKernel, ...] = ()
    launching: tuple[str, ...] = ()


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """What the worker does from now on."""

    what: str


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that is not computed, and what of a launch depends on it."""

    operation: str
    what: str
    place: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What came of a kernel.

    Attributes:
        key: The kernel's.
        reason: Why it was not lowered, "" when it was.
        signature: ``guessed``, or ``launched`` where a launch gave it.
        tries: Guesses made until one compiled.
        unknown: Operations that the memory checker does not know.
        gaps: What may leave a launch undecided.
        launch: Name of the launch that gave the signature.
        undecided: What that launch left undecided.
    """

    key: str
    reason: str = ""
    signature: str = ""
    tries: int = 0
    unknown: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    launch: str = ""
    undecided: tuple[str, ...] = ()


class Trouble(msgspec.Struct, frozen=True, kw_only=True, tag="trouble"):
    """A launch of the catalogue did not come to its end; why."""

    what: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The task is over."""


Report = Answer | Began | Trouble | Done
