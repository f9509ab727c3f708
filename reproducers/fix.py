"""A fixed implementation, as edits of the tree under test."""

from dataclasses import dataclass

from fuzz.edits import Edit


@dataclass(frozen=True, kw_only=True)
class Fix:
    """Code of ours that makes a site satisfy its invariants.

    Attributes:
        name: What it does, in a few words.
        sites: The sites (symbols without module) whose faults it cures.
        edits: Applied together; a fix whose edits do not fit a tree is passed over for
            the next of the same site.
    """

    name: str
    sites: tuple[str, ...]
    edits: tuple[Edit, ...]
