"""Which state each block holds, and whether prefix-cache hits name the right ones.

A recurrent state is good for one prefix of one length: a hit that names another block
makes a request go on from another state. The reference follows every state from the
step that computes it to the step that gives its block away.
"""

from dataclasses import dataclass

from invariants.mamba_table_values import Case, Hit, Served, ServedStep
from invariants.scheduling import NULL_BLOCK, columns_for


@dataclass(frozen=True, kw_only=True)
class WrongHit:
    """A hit of one step, and what is wrong with it."""

    step: int
    hit: Hit
    text: str


@dataclass(frozen=True, kw_only=True)
class _State:
    """The recurrent state after so many tokens of a prompt."""

    prompt: int
    tokens: int


def wrong_hits(case: Case, steps: tuple[ServedStep, ...]) -> list[WrongHit]:
    """Hits that name a block without their state, or leave no token to compute.

    Blocks of a hit before its last one may be the null block, for a recurrent state
    needs none of them.
    """
    held: dict[int, _State] = {}
    wrong: list[WrongHit] = []
    for step in steps:
        for served in step.served:
            if served.hit is not None and (text := _flaw(case, served, held)):
                wrong.append(WrongHit(step=step.number, hit=served.hit, text=text))
            for block in served.received:
                held.pop(block, None)
        for source, target in step.copies:
            if source in held:
                held[target] = held[source]
        for served in step.served:
            _recorded(case, served, held)
    return wrong


def _flaw(case: Case, served: Served, held: dict[int, _State]) -> str | None:
    hit, size = served.hit, case.block_size
    assert hit is not None
    if hit.tokens >= hit.request_tokens:
        return f"leaves none of {hit.request_tokens} tokens to compute"
    columns = columns_for(hit.tokens, size)
    if len(hit.blocks) != columns or NULL_BLOCK in hit.blocks[-1:]:
        return f"names {len(hit.blocks)} blocks, the last state is in block {columns}"
    for column, block in enumerate(hit.blocks):
        wanted = _State(
            prompt=served.prompt, tokens=min((column + 1) * size, hit.tokens)
        )
        found = held.get(block)
        if block != NULL_BLOCK and found != wanted:
            return (
                f"names block {block} for the state after {wanted.tokens} tokens of "
                f"prompt {wanted.prompt}, and it holds {_shown_hit(found)}"
            )
    return None


def _shown_hit(state: _State | None) -> str:
    if state is None:
        return "none that is known"
    return f"the one after {state.tokens} tokens of prompt {state.prompt}"


def _recorded(case: Case, served: Served, held: dict[int, _State]) -> None:
    """What a step leaves in the blocks of its request."""
    size, blocks = case.block_size, served.blocks
    first = case.first_column(served.start + served.scheduled)
    used = served.scheduled if served.decodes else 1
    for block in blocks[first : first + used]:
        held.pop(block, None)
    ends = [served.end]
    if served.decodes:
        ends += range((served.start // size + 1) * size, served.end, size)
    for tokens in ends:
        column = case.first_column(tokens)
        if column < len(blocks) and blocks[column] != NULL_BLOCK:
            held[blocks[column]] = _State(prompt=served.prompt, tokens=tokens)
