"""The order of a function's blocks; they never lead back (loops are structured)."""

from __future__ import annotations

from invariants.memory.ttir import Block


def _successors(block: Block) -> list[str]:
    if not block.operations:
        return []
    return [label for label, _ in block.operations[-1].successors]


def topological(blocks: list[Block]) -> list[str]:
    """Labels such that each block follows all that lead to it."""
    by_label = {block.label: block for block in blocks}
    order: list[str] = []
    seen: set[str] = set()

    def visit(label: str) -> None:
        seen.add(label)
        for each in _successors(by_label[label]):
            if each not in seen:
                visit(each)
        order.append(label)

    visit(blocks[0].label)
    return order[::-1]


def dominators(blocks: list[Block]) -> dict[str, str]:
    """The nearest block that every way to a block passes; "" for the first."""
    order = topological(blocks)
    before: dict[str, list[str]] = {label: [] for label in order}
    for block in blocks:
        for each in _successors(block):
            if block.label in before:
                before[each].append(block.label)
    chains: dict[str, list[str]] = {}
    nearest: dict[str, str] = {}
    for label in order:
        ways = [chains[each] for each in before[label]]
        common = ways[0] if ways else []
        for way in ways[1:]:
            common = [a for a, b in zip(common, way, strict=False) if a == b]
        nearest[label] = common[-1] if common else ""
        chains[label] = [*common, label]
    return nearest
