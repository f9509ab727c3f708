"""Steps of every mix of chunks, decodes and drafts, at the edges of blocks and rows."""

from hypothesis import strategies as st

from invariants.draft_inputs_case import V2_FORMS, Case, Form, Request
from invariants.model import Origin
from invariants.verify_case import INT32_LIMIT
from strategies.block_sizes import NARROW

_FORMS: tuple[Form, ...] = ("next_tokens", "step", "expand", "inputs", "update")
_REQUESTS_MAX = 6
_STEPS = (1, 2, 3, 5)
# Longest request and block size; both are compiled into one of the kernels.
_LENGTHS = ((64, 16), (2048, NARROW), (2048, 16))
# Of Llama 4 Scout, whose requests fill 2^31 tokens at 205.
_SCOUT = 10_485_760
_QUERIES = (1, 2, 15, 17, 255, 257, 300, 1023, 1025)


@st.composite
def cases(draw: st.DrawFn, *, origin: Origin) -> Case:
    """Draw a step.

    Args:
        draw: Given by Hypothesis.
        origin: Wired ones are of deployments: a scheduler's batches, real sizes.
    """
    form = draw(st.sampled_from(_FORMS))
    longest, block_size = draw(st.sampled_from(_LENGTHS))
    steps = draw(st.sampled_from(_STEPS))
    states_of = draw(st.integers(1, _REQUESTS_MAX))
    far = form in V2_FORMS and draw(st.sampled_from((False, False, False, True)))
    states = states_of + draw(st.sampled_from((0, 0, 3)))
    if far:
        longest = _SCOUT
        states = draw(st.sampled_from((206, 256, 53, 205)))
    tails = origin == "contract" and form in V2_FORMS
    most = longest - (form in V2_FORMS)
    requests = tuple(
        draw(_requests(most=most, steps=steps, tails=tails)) for _ in range(states_of)
    )
    shifted = draw(st.booleans())
    columns = -(-longest // block_size)
    needed = columns * len(requests) + 1
    sizes = [needed, needed + 1000]
    if origin == "contract":
        sizes += [INT32_LIMIT // block_size + 1 + each for each in (1, columns, 9999)]
    return Case(
        format_version=1,
        origin=origin,
        form=form,
        requests=requests,
        padded=len(requests) + draw(st.sampled_from((0, 0, 1, 5))),
        states=states,
        longest=longest,
        steps=steps,
        extra=draw(st.sampled_from((2, 3, 4))) if shifted else draw(st.integers(1, 4)),
        shifted=shifted,
        block_size=block_size,
        pool_blocks=max(draw(st.sampled_from(sizes)), needed),
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def _requests(draw: st.DrawFn, *, most: int, steps: int, tails: bool) -> Request:
    """A decode with or without drafts, or a chunk of a prompt, whole or last."""
    kinds = ("drafts", "decode", "whole", "chunk", "last")
    kind = draw(st.sampled_from((*kinds, "tail") if tails else kinds))
    if kind in ("drafts", "decode"):
        drafts = draw(st.integers(1, steps)) if kind == "drafts" else 0
        context = draw(_places(low=1, high=most - drafts - 1))
        return Request(
            context=context,
            query=drafts + 1,
            prompt=draw(st.sampled_from((1, context))),
            drafts=drafts,
            accepted=draw(st.integers(0, drafts)),
        )
    query = min(draw(st.sampled_from(_QUERIES)), most - steps - 2)
    if kind == "whole":
        return Request(context=0, query=query, prompt=query, drafts=0, accepted=0)
    drafts = draw(st.integers(1, steps)) if kind == "tail" else 0
    context = draw(_places(low=0, high=most - query - drafts - 1))
    end = context + query
    return Request(
        context=context,
        query=query + drafts,
        prompt=end + (draw(st.integers(1, most - end)) if kind == "chunk" else 0),
        drafts=drafts,
        accepted=draw(st.integers(0, drafts)),
    )


def _places(*, low: int, high: int) -> st.SearchStrategy[int]:
    """Both ends, their neighbours, and the middle; the far end more often."""
    near = (low, low + 1, (low + high) // 2, high - 1, high, high, high)
    return st.sampled_from([each for each in near if low <= each <= high])
