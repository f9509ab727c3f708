"""What a target declares about the process that may run it, and its planted faults."""

from dataclasses import dataclass
from typing import Literal

from fuzz.edits import SourceEdit
from invariants.model import Origin


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The process that a target needs.

    Attributes:
        platform: The platform that vLLM is to believe in; one per process.
        triton: ``jit`` for Triton's real JIT classes without a device, ``interpret``
            for its interpreter.
        isolated: Whether a case may kill its process; such cases run in another.
        timeout_s: How long one isolated case may take.
        memory_bytes: Resident memory that one isolated case may reach, mapped files
            left out.
    """

    platform: Literal["cpu"] = "cpu"
    triton: Literal["jit", "interpret"] = "jit"
    isolated: bool = False
    timeout_s: float = 60.0
    memory_bytes: int = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Control:
    """A fault planted in the tree that every run must find, or the run is void.

    Attributes:
        name: Shown in the report, such as ``page_size: pads to the smallest page``.
        origin: Which cases are drawn.
        edits: The plant: alternatives, first that fits the tree is used. Empty when
            the strategy's own control cases carry the fault.
        invariant: Id of the invariant that must break.
        cases: Within how many cases it must be found.
    """

    name: str
    origin: Origin
    edits: tuple[SourceEdit, ...]
    invariant: str
    cases: int
