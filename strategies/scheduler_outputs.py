"""Scheduler outputs: one step's requests over a prefix-block layout.

A layout says where each row ends after the step; here one choice per request says how
it got there (decode, draft, chunk of a prompt, first or resumed), and the counts,
draft ids and new blocks follow.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from invariants.scheduling import (
    PLACEHOLDER_TOKEN,
    PrefixLayout,
    RequestStep,
    Row,
    SchedulerOutput,
    StepKind,
    columns_for,
    common_prefix_columns,
)
from strategies.prefix_layouts import prefix_layouts
from strategies.spec_lengths import spec_lengths

# What a request does, simplest first. `cold` is a first step that computes a prefix
# which other requests of the same step share.
_ACTIONS = ("decode", "drafts", "some drafts", "new", "chunk", "resumed", "cold")
_SEEDS = 2**16


@dataclass(frozen=True, kw_only=True)
class _Span:
    """The bounds of a request's step that its row dictates, in tokens."""

    total: int
    prefix: int
    forgotten: int


@st.composite
def scheduler_outputs(
    draw: st.DrawFn,
    *,
    layouts: st.SearchStrategy[PrefixLayout] | None = None,
    min_requests: int = 1,
    max_requests: int = 4,
    max_columns: int = 6,
    min_groups: int = 1,
    max_groups: int = 3,
    min_speculative_tokens: int = 0,
    max_speculative_tokens: int = 16,
    vocab_size: int = 128,
) -> SchedulerOutput:
    """Draw what a scheduler hands to its workers in one step.

    Args:
        draw: Given by Hypothesis.
        layouts: Where rows end, each with one token at least; by default
            `prefix_layouts` with the bounds given here.
        min_requests: Scheduled requests, at least.
        max_requests: Scheduled requests, at most.
        max_columns: Columns of a row in blocks of the smallest size, at most.
        min_groups: KV-cache groups, at least.
        max_groups: KV-cache groups, at most.
        min_speculative_tokens: As in `spec_lengths`.
        max_speculative_tokens: As in `spec_lengths`.
        vocab_size: Draft ids are below it.
    """
    if layouts is None:
        layouts = prefix_layouts(
            min_requests=min_requests,
            max_requests=max_requests,
            max_columns=max_columns,
            min_groups=min_groups,
            max_groups=max_groups,
            min_tokens=1,
        )
    layout = draw(layouts)
    rows = len(layout.num_tokens)
    length = draw(
        spec_lengths(
            min_tokens=min_speculative_tokens, max_tokens=max_speculative_tokens
        )
    )
    asynchronous = draw(st.booleans())
    actions = draw(st.lists(st.sampled_from(_ACTIONS), min_size=rows, max_size=rows))
    seed = draw(st.integers(0, _SEEDS - 1))
    steps = tuple(
        _step(
            layout,
            row,
            action=action,
            length=length,
            asynchronous=asynchronous,
            vocab_size=vocab_size,
            seed=seed,
        )
        for row, action in enumerate(actions)
    )
    kept = layout.kept_columns or (0,) * len(layout.block_sizes)
    return SchedulerOutput(
        layout=layout,
        requests=steps,
        num_common_prefix_blocks=tuple(
            0 if keep else common_prefix_columns(table)
            for table, keep in zip(layout.block_ids, kept, strict=True)
        ),
        num_speculative_tokens=length,
        vocab_size=vocab_size,
        asynchronous=asynchronous,
    )


def _step(
    layout: PrefixLayout,
    row: int,
    *,
    action: str,
    length: int,
    asynchronous: bool,
    vocab_size: int,
    seed: int,
) -> RequestStep:
    span = _Span(
        total=layout.num_tokens[row],
        prefix=layout.prefix_tokens[row],
        forgotten=layout.forgotten_tokens(row),
    )
    salt = seed + row
    kind, prompt, computed, drafts = _counts(span, action, length=length, salt=salt)
    draft_ids = tuple(
        PLACEHOLDER_TOKEN if asynchronous else (salt * 31 + turn) % vocab_size
        for turn in range(drafts)
    )
    return RequestStep(
        kind=kind,
        num_prompt_tokens=prompt,
        num_computed_tokens=computed,
        num_scheduled_tokens=span.total - computed,
        draft_token_ids=draft_ids,
        new_block_ids=_new_blocks(layout, row, kind=kind, computed=computed),
    )


def _counts(
    span: _Span, action: str, *, length: int, salt: int
) -> tuple[StepKind, int, int, int]:
    """Kind, prompt tokens, computed tokens and drafts of a step.

    An action that the row rules out becomes a first step, or a chunk of a prompt where
    the row has forgotten blocks that a first step would still need.
    """
    # A decode leaves its shared prefix, a token of its prompt after it, and what is
    # forgotten behind it.
    behind = max(span.prefix + 1, span.forgotten)
    if action in ("decode", "drafts", "some drafts") and span.total > behind:
        wanted = {"decode": 0, "drafts": length, "some drafts": length // 2}[action]
        drafts = min(wanted, span.total - 1 - behind)
        computed = span.total - 1 - drafts
        prompt = span.prefix + 1 + salt % (computed - span.prefix)
        return "cached", prompt, computed, drafts
    if action == "chunk" or span.forgotten > span.prefix:
        lowest = max(1, span.prefix, span.forgotten)
        if lowest < span.total:
            computed = lowest + salt % (span.total - lowest)
            return "cached", span.total + salt % 3, computed, 0
    hit = 0 if action == "cold" and not span.forgotten else span.prefix
    if action == "resumed":
        return "resumed", span.prefix + 1, hit, 0
    return "new", span.total + salt % 3, hit, 0


def _new_blocks(
    layout: PrefixLayout, row: int, *, kind: StepKind, computed: int
) -> tuple[Row, ...] | None:
    """Blocks that the step brings: all, or those beyond the computed tokens."""
    whole = tuple(table[row] for table in layout.block_ids)
    if kind != "cached":
        return whole
    added = tuple(
        blocks[columns_for(computed, size) :]
        for blocks, size in zip(whole, layout.block_sizes, strict=True)
    )
    return added if any(added) else None
