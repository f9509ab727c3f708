"""Steps whose requests have sampling parameters of every kind."""

from dataclasses import replace

from hypothesis import strategies as st

from invariants.model import Origin
from invariants.penalties_case import (
    COUNT_TILE,
    DRAFTS_MAX,
    PARTS,
    PENALTY_TILE,
    WORD_BITS,
    Case,
    Request,
)
from invariants.verify_case import INT32_LIMIT

# Around words of the mask and tiles of the kernels.
_VOCABULARIES = (
    WORD_BITS,
    WORD_BITS + 1,
    WORD_BITS - 1,
    COUNT_TILE,
    COUNT_TILE + 1,
    COUNT_TILE - 1,
    PENALTY_TILE,
    PENALTY_TILE + 1,
    PENALTY_TILE - 1,
)
# Of models with large ones: Qwen3, Gemma.
_LARGE = (151_936, 262_144)
_LONGEST = 4_096
# The longest request that Llama 4 Scout takes, and slots whose tokens pass 2^31.
_LONG, _LONG_SLOTS = 10_485_760, 256
_SLOTS = (4, 8, 33)
_REQUESTS_MAX = 3
_SHORT = (1, 2, 3, 7, 20)
_PROMPTS = (*_SHORT, *_SHORT, COUNT_TILE - 1, COUNT_TILE, COUNT_TILE + 1)
_RESUMED = (0, 0, 0, 1, 5, COUNT_TILE)
_PENALTIES = (0.0, 0.0, 0.5, -1.5, 2.0)
_REPETITIONS = (1.0, 1.0, 1.5, 0.5)
_TEMPERATURES = (1.0, 1.0, 0.0, 0.5, 1.25)
_MIN_P = (0.0, 0.0, 0.125, 0.75)
_BIASES = (1.0, -2.5, 100.0, -100.0)
_WORD_MAX = 3
# A request that asks for nothing.
PLAIN = Request(
    prompt=1,
    resumed=0,
    sampled=0,
    drafts=0,
    repetition=1.0,
    frequency=0.0,
    presence=0.0,
    bias=(),
    allowed=(),
    min_tokens=0,
    stops=(),
    bad_words=(),
    temperature=1.0,
    min_p=0.0,
)


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a step.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones go through the sampler, contract ones through one part.
    """
    part = "all" if origin == "wired" else draw(st.sampled_from(PARTS))
    far = draw(st.sampled_from(("near", "near", "near", "counts", "tokens", "rows")))
    vocabulary = draw(st.sampled_from(_VOCABULARIES))
    slots, longest = draw(st.sampled_from(_SLOTS)), _LONGEST
    if far == "counts":
        vocabulary = draw(st.sampled_from(_LARGE))
        slots = INT32_LIMIT // vocabulary + draw(st.sampled_from((2, 100)))
    elif far == "tokens":
        slots, longest = _LONG_SLOTS, _LONG
    bare = Case(
        format_version=1,
        origin=origin,
        part=part,
        vocabulary=vocabulary,
        slots=slots,
        longest=longest,
        ended=(),
        requests=(PLAIN,),
        order=(0,),
        row_stride=vocabulary,
        seed=draw(st.integers(0, 255)),
    )
    ended = draw(st.lists(_request(case=bare), max_size=2))
    requests = draw(st.lists(_request(case=bare), min_size=1, max_size=_REQUESTS_MAX))
    order = draw(st.permutations(range(len(requests))))
    stride = vocabulary
    if origin == "contract":
        rows = sum(each.drafts + 1 for each in requests)
        stride += draw(st.sampled_from((0, 1, 16)))
        if far == "rows" and rows > 1:
            stride = -(-INT32_LIMIT // (rows - 1))
    return _with_words(
        Case(
            format_version=1,
            origin=origin,
            part=part,
            vocabulary=vocabulary,
            slots=slots,
            longest=longest,
            ended=tuple(ended),
            requests=tuple(requests),
            order=tuple(order),
            row_stride=stride,
            seed=bare.seed,
        ),
        draw(st.lists(st.integers(0, 5), max_size=3)),
    )


@st.composite
def _request(draw: st.DrawFn, *, case: Case) -> Request:
    """One request; each kind of parameter is asked for by some."""
    asks = draw(st.sets(st.sampled_from(PARTS)))
    if case.part != "all" and draw(st.sampled_from((True, True, False))):
        asks = asks | {case.part}
    resumed = draw(st.sampled_from(_RESUMED))
    sampled = draw(st.integers(0, DRAFTS_MAX + 1))
    drafts = draw(st.integers(0, DRAFTS_MAX))
    letters = st.sampled_from(case.alphabet)
    some = st.lists(letters, min_size=1, max_size=4, unique=True)
    penalties = "penalties" in asks
    bias: list[tuple[int, float]] = []
    allowed: list[int] = []
    stops: list[int] = []
    if "bias" in asks:
        amounts = st.tuples(letters, st.sampled_from(_BIASES))
        bias = draw(st.lists(amounts, max_size=3, unique_by=lambda each: each[0]))
        allowed = draw(st.one_of(st.just([]), some))
        stops = draw(st.one_of(st.just([]), some))
    output = resumed + sampled
    # Around the row at which the first stop token may come.
    ends = st.integers(max(output - 1, 0), output + drafts + 1)
    return Request(
        prompt=draw(st.sampled_from(_PROMPTS)),
        resumed=resumed,
        sampled=sampled,
        drafts=drafts,
        repetition=draw(st.sampled_from(_REPETITIONS)) if penalties else 1.0,
        frequency=draw(st.sampled_from(_PENALTIES)) if penalties else 0.0,
        presence=draw(st.sampled_from(_PENALTIES)) if penalties else 0.0,
        bias=tuple(bias),
        allowed=tuple(allowed),
        min_tokens=draw(ends) if stops else 0,
        stops=tuple(stops),
        bad_words=(
            tuple(
                tuple(word)
                for word in draw(
                    st.lists(
                        st.lists(letters, min_size=1, max_size=_WORD_MAX),
                        min_size=1,
                        max_size=3,
                    )
                )
            )
            if "bad_words" in asks
            else ()
        ),
        temperature=(
            draw(st.sampled_from(_TEMPERATURES))
            if asks & {"temperature", "min_p"}
            else 1.0
        ),
        min_p=draw(st.sampled_from(_MIN_P)) if "min_p" in asks else 0.0,
    )


def _with_words(case: Case, cuts: list[int]) -> Case:
    """The case with words that its requests have just put out, or begun to."""
    requests = []
    for number, one in enumerate(case.requests):
        tokens = case.tokens(number)[one.prompt :]
        words = list(one.bad_words)
        for cut in cuts if words else ():
            last = max(one.output + one.drafts - cut, 0)
            words.append(tuple(tokens[max(last - _WORD_MAX + 1, 0) : last + 1]))
        words = [word for word in words if word]
        requests.append(replace(one, bad_words=tuple(words)))
    return replace(case, requests=tuple(requests))
