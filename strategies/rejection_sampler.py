"""Steps with drafts: ragged rows of every kind, and logits on both sides of 2^31."""

from hypothesis import strategies as st

from invariants.model import Origin
from invariants.rejection_case import CONTRACT_KINDS, DRAFTS_MAX, Case, Kind, Runner
from invariants.rejection_sampler import VOCAB_BLOCK
from invariants.verify_case import INT32_LIMIT

_RUNNERS: tuple[Runner, ...] = ("v1", "v2")
_REQUESTS_MAX = 5
_STEPS = (1, 2, 3, 5)
_KINDS: tuple[Kind, ...] = ("right", "open", "never", "same", "certain")
# The kernels' blocks are 8192 tokens, and 1024 where V2 draws another token.
_VOCABULARIES = (2, 3, 17, 100, 1023, 1025, 2048)
_EDGES = (VOCAB_BLOCK - 1, VOCAB_BLOCK, VOCAB_BLOCK + 1)
_MOSTLY = (True, True, True, False)
_SIZES = ("small",) * 18 + ("edge",) * 6 + ("far",) * 4
# Rows of 2^31 logits in V2: vocabulary and steps.
_LONG = ((32_000, 64), (32_000, 64), (151_936, 15))
# Of Gemma 3: the larger it is, the fewer programs there are.
_WIDE = 262_144


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a step.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones are as the runners make them.
    """
    runner: Runner = draw(st.sampled_from(_RUNNERS))
    size = draw(st.sampled_from(_SIZES))
    if size == "far" and runner == "v1" and origin == "wired":
        return draw(_far_of_v1())
    return draw(_computed(origin=origin, runner=runner, size=size))


@st.composite
def _computed(draw: st.DrawFn, *, origin: Origin, runner: Runner, size: str) -> Case:
    wired = origin == "wired"
    vocab = draw(st.sampled_from(_EDGES if size == "edge" else _VOCABULARIES))
    steps = draw(st.sampled_from(_STEPS if size == "small" else _STEPS[:3]))
    requests = draw(st.integers(1, _REQUESTS_MAX if size == "small" else 2))
    counts = draw(st.lists(st.integers(0, steps), min_size=requests, max_size=requests))
    counts[draw(st.integers(0, requests - 1))] = steps
    greedy = draw(_greedy(requests=requests))
    # 0.20.1 has no V2 without probabilities, and none that verifies blocks.
    drafted = draw(st.sampled_from((True, False) if runner == "v1" else _MOSTLY))
    known: list[Kind] = list(_KINDS)
    if not wired:
        skipped = () if runner == "v1" and drafted else ("undrafted",)
        known += [kind for kind in CONTRACT_KINDS if kind not in skipped]
    kinds = draw(st.lists(st.sampled_from(known), min_size=1, max_size=sum(counts)))
    states, row_stride = requests, vocab
    block = False
    if runner == "v2":
        block = not draw(st.sampled_from(_MOSTLY))
        states = draw(st.sampled_from((requests, 8, 1024)))
        # Rows of a padded vocabulary.
        row_stride = vocab + draw(st.sampled_from((0, 0, 64)))
        if size == "far" and (wired or drafted):
            drafted = True
            vocab, steps = draw(st.sampled_from(_LONG))
            row_stride = vocab
            limit = draw(st.sampled_from((INT32_LIMIT, INT32_LIMIT // 4)))
            states = draw(st.sampled_from(_around(-(-limit // (steps * vocab)))))
        elif size == "far" and runner == "v2":
            row_stride = draw(st.sampled_from((2**29, 2**31 - 1, 2**31)))
    return Case(
        format_version=1,
        origin=origin,
        runner=runner,
        vocab=vocab,
        counts=tuple(counts),
        greedy=greedy,
        kinds=tuple(kinds),
        drafted=drafted,
        block=block,
        steps=steps,
        states=states,
        row_stride=row_stride,
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def _far_of_v1(draw: st.DrawFn) -> Case:
    """Requests with as many drafts as there may be, to 2^31 bytes or logits."""
    limit = draw(st.sampled_from((INT32_LIMIT, INT32_LIMIT, INT32_LIMIT // 4)))
    full = limit // (DRAFTS_MAX * _WIDE) + draw(st.sampled_from((1, 0)))
    counts = (draw(st.sampled_from((1, 0, DRAFTS_MAX))),) + (DRAFTS_MAX,) * full
    requests = len(counts)
    return Case(
        format_version=1,
        origin="wired",
        runner="v1",
        vocab=_WIDE,
        counts=counts,
        greedy=(False,) * requests,
        kinds=("open",),
        drafted=draw(st.booleans()),
        block=False,
        steps=DRAFTS_MAX,
        states=requests,
        row_stride=_WIDE,
        seed=draw(st.integers(0, 2**16)),
    )


def _around(first: int) -> tuple[int, ...]:
    """How many states there are: up to the first one past a limit, beside that."""
    return (first + 1, first, first + 4, max(first - 1, 1))


def _greedy(*, requests: int) -> st.SearchStrategy[tuple[bool, ...]]:
    """All, none, or some of them."""
    return st.one_of(
        st.just((False,) * requests),
        st.just((True,) * requests),
        st.tuples(*[st.booleans()] * requests),
    )
