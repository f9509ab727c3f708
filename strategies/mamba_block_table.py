"""Cases of the aligned Mamba block table: tables as documented, and small engines.

Lengths are drawn as a column and a way to end in it, so that the last column, a full
block and one token more come up in every batch, and shrink to 0.
"""

from hypothesis import strategies as st

from invariants.mamba_table_values import (
    Branch,
    Case,
    Decode,
    Engine,
    GivenTable,
    Mode,
    Runner,
    ServedRequest,
)
from invariants.model import Origin
from invariants.scheduling import columns_for
from strategies.block_sizes import DEPLOYED_BLOCK_SIZES
from strategies.prefix_layouts import block_sizes
from strategies.spec_lengths import spec_lengths

# Most cases are aligned ones; the other modes hand the table through.
_MODES: tuple[Mode, ...] = ("align",) * 7 + ("none", "all")
_WIRED_MODES: tuple[Mode, ...] = ("align",) * 9 + ("none",)
_BRANCHES: tuple[Branch, ...] = ("torch", "triton")
# A wired case launches kernels at each step, some milliseconds each: the first choices
# are cheap ones.
_WIRED_BRANCHES: tuple[Branch, ...] = ("torch",) * 4 + ("triton",)
_RUNNERS: tuple[Runner, ...] = ("v1",) * 15 + ("v2",)
# Ways of a length to end in its column: one token, all, all but one, half.
_ENDINGS = 4
# Layouts in memory, simplest first: first row, row gap, column step, length step.
_VIEWS = (
    *((0, 0, 1, 1), (1, 0, 1, 1), (0, 3, 1, 1), (0, 0, 2, 1)),
    *((2, 1, 1, 1), (0, 0, 1, 2), (1, 5, 2, 2), (0, 2**30, 1, 1)),
)


def cases(
    *,
    origin: Origin,
    min_requests: int = 1,
    max_requests: int = 4,
    max_columns: int = 12,
    max_speculative_blocks: int = 16,
) -> st.SearchStrategy[Case]:
    """Draw cases of one origin.

    Args:
        origin: ``contract`` draws tables of the documented width, ``wired`` engines.
        min_requests: Rows or requests, at least (one in wired cases).
        max_requests: Rows or requests, at most.
        max_columns: Columns of the documented width, at most.
        max_speculative_blocks: Speculative length, at most.
    """
    lengths = spec_lengths(max_tokens=max_speculative_blocks)
    if origin == "contract":
        return _contract_cases(
            lengths=lengths,
            min_requests=min_requests,
            max_requests=max_requests,
            max_columns=max_columns,
        )
    return _wired_cases(
        lengths=lengths,
        min_requests=max(min_requests, 1),
        max_requests=max_requests,
        max_columns=max_columns,
    )


def _length(code: int, *, block_size: int, max_model_len: int) -> int:
    """A length from its drawn code: 0 for code 0, else a column and an ending."""
    if code == 0:
        return 0
    column, ending = divmod(code - 1, _ENDINGS)
    last = (1, block_size, max(block_size - 1, 1), (block_size + 1) // 2)[ending]
    return min(column * block_size + last, max_model_len)


@st.composite
def _contract_cases(
    draw: st.DrawFn,
    *,
    lengths: st.SearchStrategy[int],
    min_requests: int,
    max_requests: int,
    max_columns: int,
) -> Case:
    block_size = draw(block_sizes())
    columns = draw(st.integers(1, max_columns))
    full = draw(st.integers(1, _ENDINGS))
    max_model_len = _length(
        (columns - 1) * _ENDINGS + full,
        block_size=block_size,
        max_model_len=columns * block_size,
    )
    codes = draw(
        st.lists(
            st.integers(0, columns * _ENDINGS),
            min_size=min_requests,
            max_size=max_requests,
        )
    )
    first_row, row_gap, column_step, length_step = draw(st.sampled_from(_VIEWS))
    return Case(
        format_version=1,
        origin="contract",
        mode=draw(st.sampled_from(_MODES)),
        branch=draw(st.sampled_from(_BRANCHES)),
        max_model_len=max_model_len,
        block_size=block_size,
        num_speculative_blocks=draw(lengths),
        given=GivenTable(
            seq_lens=tuple(
                _length(code, block_size=block_size, max_model_len=max_model_len)
                for code in codes
            ),
            first_row=first_row,
            row_gap=row_gap,
            column_step=column_step,
            length_step=length_step,
        ),
    )


# Mamba blocks of deployed models are as large as an attention block at least
# (vllm/platforms/interface.py, 0.20.1); 16 and 32 keep prompts short.
_WIRED_BLOCK_SIZES = (16, 32, *(s for s in DEPLOYED_BLOCK_SIZES if s >= 528))
# Block sizes of the KV-cache groups beside the Mamba group, in Mamba blocks: target
# attention alone, a drafter's too, no attention at all.
_GROUPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((1, 1),),
    ((1, 1), (2, 1)),
    ((1, 1), (1, 2)),
    (),
    ((1, 1), (1, 1), (4, 1)),
)
_LONGEST_DECODE = 5


@st.composite
def _wired_cases(
    draw: st.DrawFn,
    *,
    lengths: st.SearchStrategy[int],
    min_requests: int,
    max_requests: int,
    max_columns: int,
) -> Case:
    mode = draw(st.sampled_from(_WIRED_MODES))
    cache_block_size = draw(st.sampled_from(_WIRED_BLOCK_SIZES))
    columns = draw(st.integers(1, max_columns))
    full = draw(st.integers(1, _ENDINGS))
    # Room for a prompt token and one of output.
    max_model_len = max(
        _length(
            (columns - 1) * _ENDINGS + full,
            block_size=cache_block_size,
            max_model_len=columns * cache_block_size,
        ),
        2,
    )
    num_speculative = draw(lengths)
    groups = draw(st.sampled_from(_GROUPS))
    requests = draw(
        st.lists(
            _requests(
                block_size=cache_block_size,
                max_model_len=max_model_len,
                num_speculative=num_speculative,
            ),
            min_size=min_requests,
            max_size=max_requests,
        )
    )
    # Enough for the longest row of every group, and for 1 to all requests at once.
    row_blocks = (columns + num_speculative + 2) * (2 * len(groups) + 1)
    at_once = draw(st.integers(1, len(requests)))
    return Case(
        format_version=1,
        origin="wired",
        mode=mode,
        branch=draw(st.sampled_from(_WIRED_BRANCHES)),
        max_model_len=max_model_len,
        block_size=cache_block_size if mode == "align" else max_model_len,
        num_speculative_blocks=num_speculative,
        engine=Engine(
            runner=draw(st.sampled_from(_RUNNERS)),
            attention_block_sizes=tuple(
                cache_block_size * times // parts for times, parts in groups
            ),
            chunk_blocks=draw(st.sampled_from((1, 2, 3, 8))),
            pool_blocks=1 + row_blocks * at_once,
            max_num_reqs=len(requests),
            padding_rows=draw(st.integers(0, 2)),
            requests=tuple(requests),
        ),
    )


@st.composite
def _requests(
    draw: st.DrawFn,
    *,
    block_size: int,
    max_model_len: int,
    num_speculative: int,
) -> ServedRequest:
    code = draw(st.integers(1, columns_for(max_model_len, block_size) * _ENDINGS))
    prompt = _length(code, block_size=block_size, max_model_len=max_model_len - 1)
    # Two families, arriving together or one step apart.
    turn = draw(st.integers(0, 5))
    decodes = draw(
        st.lists(st.integers(0, 5), max_size=_LONGEST_DECODE).map(
            lambda codes: tuple(_decode(code, num_speculative) for code in codes)
        )
    )
    return ServedRequest(
        prompt_tokens=prompt, family=turn % 2, arrives=turn // 2, decodes=decodes
    )


def _decode(code: int, num_speculative: int) -> Decode:
    """A decode step: nothing drafted; else few or all drafts, none to all accepted."""
    drafts = (0, num_speculative, num_speculative, num_speculative)[min(code, 3)]
    if code > 3:
        drafts = num_speculative // 2
    accepted = (0, 0, drafts, drafts // 2, 0, drafts)[code]
    return Decode(drafts=drafts, accepted=accepted)
