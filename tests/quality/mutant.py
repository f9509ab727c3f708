"""A planted fault of the quality suite, with what is asked of the harness."""

from dataclasses import dataclass

from fuzz.edits import SourceEdit
from invariants.model import Origin


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault written into the tree, to be found and shrunk.

    Attributes:
        edits: Alternatives by release; the first that fits the tree is planted.
        invariants: Ids any of which must break.
        site: What the finding must name, "" for anything.
        cases: Within how many cases it must be found.
        size: The shrunk case's canonical JSON may be this long, in characters.
    """

    name: str
    origin: Origin
    edits: tuple[SourceEdit, ...]
    invariants: tuple[str, ...]
    cases: int
    size: int
    site: str = ""
