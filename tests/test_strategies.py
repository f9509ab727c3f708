"""The general generators: what they reach, how they shrink, what they never break.

The scheduler's rules are stated here once more, in plain Python.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from invariants.model import CaseError, decode, encode
from invariants.scheduling import PrefixLayout, SchedulerOutput
from strategies.pool_sizes import pool_sizes
from strategies.prefix_layouts import block_sizes, prefix_layouts
from strategies.scheduler_outputs import scheduler_outputs
from strategies.spec_lengths import spec_lengths
from tests.strategy_search import find_any, minimal

sampled = settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


# Speculative lengths


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 7, 15, 16])
def test_spec_lengths_reach_the_lengths_that_matter(length: int) -> None:
    find_any(spec_lengths(), lambda drawn: drawn == length)


def test_spec_lengths_keep_their_bounds() -> None:
    assert minimal(spec_lengths()) == 0
    assert minimal(spec_lengths(min_tokens=6)) == 6
    assert find_any(spec_lengths(max_tokens=14), lambda drawn: drawn > 8) == 14
    with pytest.raises(ValueError, match="got 3 and 2"):
        spec_lengths(min_tokens=3, max_tokens=2)


# Pool sizes


@pytest.mark.parametrize("blocks", [2, 3, 13, 127, 128, 129, 2053, 4097])
def test_pool_sizes_reach_small_prime_and_power_sizes(blocks: int) -> None:
    find_any(pool_sizes(), lambda drawn: drawn == blocks)


@pytest.mark.parametrize("limit", [2**31, 2**32])
@pytest.mark.parametrize("stride", [901_120, 4096, 2_228_224])
def test_pool_sizes_reach_both_sides_of_a_32_bit_offset(
    limit: int, stride: int
) -> None:
    sizes = pool_sizes(page_stride=stride, max_blocks=2**21)
    find_any(sizes, lambda blocks: (blocks - 1) * stride < limit <= blocks * stride)
    find_any(sizes, lambda blocks: limit <= (blocks - 1) * stride < limit + stride)


def test_pool_sizes_keep_their_bounds() -> None:
    assert minimal(pool_sizes()) == 2
    assert minimal(pool_sizes(min_blocks=2600, max_blocks=2600)) == 2600
    assert minimal(pool_sizes(max_blocks=5000), lambda n: n > 4097) == 5000
    with pytest.raises(ValueError, match="got 3 and 2"):
        pool_sizes(min_blocks=3, max_blocks=2)
    with pytest.raises(ValueError, match="page_stride"):
        pool_sizes(page_stride=0)


# Prefix-block layouts


def rows_of(layout: PrefixLayout) -> list[tuple[int, int, tuple[int, ...]]]:
    """Group, request and block ids of every row."""
    return [
        (group, request, row)
        for group, rows in enumerate(layout.block_ids)
        for request, row in enumerate(rows)
    ]


@sampled
@given(prefix_layouts(min_columns=0))
def test_layouts_keep_the_rules_of_a_block_pool(layout: PrefixLayout) -> None:
    places: dict[int, set[tuple[int, int]]] = {}
    owners: dict[int, set[int]] = {}
    for group, request, row in rows_of(layout):
        size = layout.block_sizes[group]
        # Enough blocks for the tokens, and not one too many.
        assert len(row) * size >= layout.num_tokens[request]
        assert (len(row) - 1) * size < max(layout.num_tokens[request], 1)
        for column, block in enumerate(row):
            assert 0 <= block < layout.pool_blocks
            if block == 0:
                assert column == 0 or row[column - 1] == 0
                assert column < len(row) - 1
                continue
            places.setdefault(block, set()).add((group, column))
            owners.setdefault(block, set()).add(request)
            if len(owners[block]) > 1:
                # Shared: a full block inside the prefix of each of its owners.
                for owner in owners[block]:
                    assert (column + 1) * size <= layout.prefix_tokens[owner]
    assert all(len(where) == 1 for where in places.values())
    assert set(layout.reused) <= set(owners)
    assert not set(layout.freed) & ({0} | set(owners))
    assert len(set(layout.freed)) == len(layout.freed)


@sampled
@given(prefix_layouts())
def test_prefixes_are_shared_whole_blocks(layout: PrefixLayout) -> None:
    sharing = [tokens for tokens in layout.prefix_tokens if tokens]
    assert len(sharing) != 1
    for tokens, prefix in zip(layout.num_tokens, layout.prefix_tokens, strict=True):
        assert prefix < tokens
        assert all(prefix % size == 0 for size in layout.block_sizes)
    for group, size in enumerate(layout.block_sizes):
        for column in range(max(sharing, default=0) // size):
            blocks = {
                rows[column]
                for rows, prefix in zip(
                    layout.block_ids[group], layout.prefix_tokens, strict=True
                )
                if (column + 1) * size <= prefix
            }
            assert len(blocks - {0}) <= 1


@pytest.mark.parametrize(
    "reached",
    [
        lambda layout: max(layout.owned_ids()) == layout.pool_blocks - 1 > 40,
        lambda layout: layout.pool_blocks == len(set(layout.owned_ids())) + 1,
        lambda layout: (
            sum(map(bool, layout.prefix_tokens)) == 2 < len(layout.num_tokens)
        ),
        lambda layout: len(set(layout.prefix_tokens)) > 2,
        lambda layout: any(0 in row for _, _, row in rows_of(layout)),
        lambda layout: layout.freed and layout.reused,
        lambda layout: len(set(layout.block_sizes)) == 3,
        lambda layout: layout.num_tokens[0] % layout.block_sizes[0] == 0,
        lambda layout: layout.num_tokens[0] % max(layout.block_sizes[0], 3) == 1,
        lambda layout: any(list(row) != sorted(row) for _, _, row in rows_of(layout)),
        lambda layout: 1072 in layout.block_sizes,
    ],
    ids=[
        "a block at the top of a larger pool",
        "a pool with no block to spare",
        "a prefix of some requests only",
        "prefixes of several lengths",
        "null blocks",
        "freed and reused blocks",
        "three block sizes",
        "a full last block",
        "one token in the last block",
        "scattered ids",
        "a deployed block size",
    ],
)
def test_layouts_reach(reached: Callable[[PrefixLayout], bool]) -> None:
    find_any(prefix_layouts(), reached)


def test_layouts_reach_rows_without_tokens() -> None:
    find_any(prefix_layouts(min_columns=0), lambda layout: 0 in layout.num_tokens)


def test_layouts_shrink_to_one_token_in_block_one() -> None:
    assert minimal(prefix_layouts()) == PrefixLayout(
        pool_blocks=2,
        block_sizes=(1,),
        num_tokens=(1,),
        block_ids=(((1,),),),
        prefix_tokens=(0,),
    )


def test_a_shared_prefix_shrinks_to_two_short_rows() -> None:
    layout = minimal(prefix_layouts(), lambda layout: any(layout.prefix_tokens))
    assert layout.block_ids == (((1, 2), (1, 3)),)
    assert layout.block_sizes == (1,)
    assert layout.pool_blocks == 4


def test_layouts_keep_their_bounds() -> None:
    strategy = prefix_layouts(
        min_requests=2,
        max_requests=3,
        max_groups=1,
        min_block_size=880,
        max_block_size=880,
        min_tokens=20_000,
        max_tokens=20_000,
        min_pool_blocks=2600,
        max_pool_blocks=2600,
        forgets=False,
    )
    layout = find_any(strategy, lambda layout: max(layout.owned_ids()) == 2599)
    assert layout.block_sizes == (880,)
    assert set(layout.num_tokens) == {20_000}
    assert len(layout.block_ids[0][0]) == 23
    assert not layout.kept_columns
    with pytest.raises(ValueError, match="block_sizes wants"):
        block_sizes(min_size=3, max_size=2)


def valid_layout() -> dict[str, object]:
    return {
        "pool_blocks": 4,
        "block_sizes": (4,),
        "num_tokens": (5,),
        "block_ids": (((1, 2),),),
        "prefix_tokens": (0,),
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_ids": (((1,),),)}, "need \\[2\\]"),
        ({"block_ids": (((1, 4),),)}, "block id 4 in a pool of 4"),
        ({"block_ids": (((0, 1),),)}, "must be the null block"),
        ({"block_ids": ()}, "one table per group"),
        ({"prefix_tokens": ()}, "0 prefix lengths for 1 requests"),
        ({"reused": (3,)}, "reused blocks must be owned"),
        ({"freed": (1,)}, "freed blocks must be neither"),
        ({"kept_columns": (1, 1)}, "one per group"),
    ],
)
def test_inconsistent_layouts_are_refused(
    wrong: dict[str, object], message: str
) -> None:
    PrefixLayout(**valid_layout())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        PrefixLayout(**{**valid_layout(), **wrong})  # type: ignore[arg-type]


# Scheduler outputs


@sampled
@given(scheduler_outputs())
def test_steps_keep_the_rules_of_a_scheduler(output: SchedulerOutput) -> None:
    layout = output.layout
    vocabulary = range(output.vocab_size)
    for row, step in enumerate(output.requests):
        total = step.num_computed_tokens + step.num_scheduled_tokens
        drafts = step.draft_token_ids
        assert step.num_scheduled_tokens >= 1
        assert total == layout.num_tokens[row]
        assert len(drafts) <= output.num_speculative_tokens
        if output.asynchronous:
            assert set(drafts) <= {-1}
        else:
            assert all(token in vocabulary for token in drafts)
        if drafts:
            # The last accepted token and the drafts are what a decode step computes.
            assert step.decodes
            assert step.num_scheduled_tokens == 1 + len(drafts)
        if step.kind != "cached":
            # Only a prefix hit is computed already, and the last token never is.
            assert step.num_computed_tokens in (0, layout.prefix_tokens[row])
            assert step.num_computed_tokens < step.num_prompt_tokens
        else:
            assert step.num_computed_tokens >= max(1, layout.prefix_tokens[row])
        if step.kind == "new":
            assert total <= step.num_prompt_tokens


@sampled
@given(scheduler_outputs())
def test_new_blocks_complete_the_rows(output: SchedulerOutput) -> None:
    layout = output.layout
    for row, step in enumerate(output.requests):
        for group, size in enumerate(layout.block_sizes):
            whole = layout.block_ids[group][row]
            new = step.new_block_ids[group] if step.new_block_ids else ()
            before = (
                0 if step.kind != "cached" else -(-step.num_computed_tokens // size)
            )
            assert whole[before:] == new
            # What is still to be computed is not thrown away yet.
            computed_columns = step.num_computed_tokens // size
            assert 0 not in whole[computed_columns:]
        assert step.new_block_ids is None or any(step.new_block_ids)


@sampled
@given(scheduler_outputs())
def test_common_prefix_counts_are_true_of_the_tables(output: SchedulerOutput) -> None:
    assert len(output.num_common_prefix_blocks) == len(output.layout.block_sizes)
    for count, rows in zip(
        output.num_common_prefix_blocks, output.layout.block_ids, strict=True
    ):
        first, *others = rows
        assert all(row[:count] == first[:count] for row in others)
        assert 0 not in first[:count]


@pytest.mark.parametrize(
    "reached",
    [
        lambda output: (
            Counter(step.kind for step in output.requests).keys()
            == {"new", "cached", "resumed"}
        ),
        lambda output: any(
            len(step.draft_token_ids) == 16 and step.draft_token_ids[0] == -1
            for step in output.requests
        ),
        lambda output: (
            any(
                0 < len(step.draft_token_ids) < output.num_speculative_tokens
                for step in output.requests
            )
            and any(
                len(step.draft_token_ids) == output.num_speculative_tokens
                for step in output.requests
            )
        ),
        lambda output: (
            output.num_speculative_tokens > 0
            and all(
                step.decodes and not step.draft_token_ids for step in output.requests
            )
        ),
        lambda output: any(
            step.kind == "cached" and not step.decodes for step in output.requests
        ),
        lambda output: (
            len(output.requests) > 1 and min(output.num_common_prefix_blocks) > 0
        ),
        lambda output: any(step.new_block_ids is None for step in output.requests),
        lambda output: any(
            step.kind == "resumed" and step.num_computed_tokens
            for step in output.requests
        ),
    ],
    ids=[
        "new, cached and resumed requests together",
        "a full set of placeholders",
        "partial and full drafts together",
        "speculation on and nothing drafted",
        "a chunk of a prompt",
        "a common prefix in each group",
        "no new block",
        "a resumed request with a prefix hit",
    ],
)
def test_scheduler_outputs_reach(reached: Callable[[SchedulerOutput], bool]) -> None:
    find_any(scheduler_outputs(), reached, max_examples=4000)


def test_scheduler_outputs_shrink_to_one_new_token() -> None:
    output = minimal(scheduler_outputs())
    (step,) = output.requests
    assert (step.kind, step.num_scheduled_tokens) == ("new", 1)
    assert output.num_speculative_tokens == 0
    assert not output.asynchronous


def test_drafts_shrink_to_one_request_with_one_draft() -> None:
    output = minimal(
        scheduler_outputs(),
        lambda output: any(step.draft_token_ids for step in output.requests),
    )
    (step,) = output.requests
    assert len(step.draft_token_ids) == 1
    assert output.num_speculative_tokens == 1
    assert step.num_scheduled_tokens == 2


def test_steps_and_rows_that_disagree_are_refused() -> None:
    output = find_any(scheduler_outputs())
    longer = encode(output).replace(
        '"num_scheduled_tokens":', '"num_scheduled_tokens":9'
    )
    with pytest.raises(CaseError, match="each row must end where its step does"):
        decode(longer, SchedulerOutput)


@sampled
@given(st.one_of(scheduler_outputs(), prefix_layouts()))
def test_values_survive_json(value: SchedulerOutput | PrefixLayout) -> None:
    assert decode(encode(value), type(value)) == value
