"""Inputs of the next step: strategy, the model, laws, real kernels."""

from dataclasses import replace

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.draft_inputs import (
    CLIPPED,
    INVARIANTS,
    LONG,
    PADDED,
    PARTIAL,
    PAST_BYTES,
    PAST_HISTORY,
    PAST_SLOTS,
    TAIL,
    Observation,
    Output,
    judge,
)
from invariants.draft_inputs_case import Case, Form, Request
from invariants.draft_inputs_model import UNTOUCHED, expected
from invariants.memory.findings import Undecided
from invariants.model import Judgement, Origin
from strategies.draft_inputs import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "draft_inputs"
FORMS: tuple[Form, ...] = ("next_tokens", "step", "expand", "inputs", "update")
# A chunk of a prompt, a decode with two of three drafts accepted, one without drafts.
CHUNK = Request(context=4, query=3, prompt=9, drafts=0, accepted=0)
DRAFTED = Request(context=6, query=4, prompt=2, drafts=3, accepted=2)
DECODE = Request(context=15, query=1, prompt=15, drafts=0, accepted=0)


def small(form: Form) -> Case:
    return Case(
        format_version=1,
        origin="wired",
        form=form,
        requests=(CHUNK, DRAFTED, DECODE),
        padded=4,
        states=5,
        longest=17,
        steps=3,
        extra=2,
        shifted=True,
        block_size=4,
        pool_blocks=20,
        seed=0,
    )


def right(case: Case) -> Observation:
    outputs = (
        Output(name=name, numbers=tuple(0 if each is None else each for each in made))
        for name, made in expected(case).items()
    )
    return Observation(outputs=tuple(outputs))


def labels(case: Case) -> frozenset[str]:
    return judge(case, Observation()).labels


@pytest.mark.parametrize(
    ("origin", "label"),
    [
        *(("wired", label) for label in (PAST_HISTORY, PAST_BYTES, CLIPPED)),
        *(("wired", label) for label in (LONG, PADDED, PARTIAL)),
        *(("contract", label) for label in (PAST_SLOTS, TAIL)),
    ],
)
def test_boundaries_are_reached(origin: Origin, label: str) -> None:
    find_any(cases(origin=origin), lambda case: label in labels(case))


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_request(origin: Origin) -> None:
    assert len(minimal(cases(origin=origin)).requests) == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (replace(DRAFTED, accepted=4), "4 of 3 drafts"),
        (replace(DRAFTED, query=5), "has 3 drafts in tokens 6 to 11"),
        (replace(DECODE, context=9, prompt=9, query=2), "nobody sampled"),
        (replace(DECODE, context=17), "more than 16 tokens"),
        (Request(context=0, query=4, prompt=2, drafts=2, accepted=0), "contract of V2"),
    ],
)
def test_a_batch_that_no_scheduler_makes_is_refused(
    changed: Request, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(small("inputs"), requests=(changed,))


# --- the model ------------------------------------------------------------------------


def test_next_tokens() -> None:
    made = expected(small("next_tokens"))
    assert made["valid_sampled_tokens_count"] == [0, 3, 1]
    assert made["num_rejected_tokens"] == [0, 1, 0]
    assert made["token_indices_to_sample"] == [2, 5, 7]


def test_a_drafters_step() -> None:
    case = replace(small("step"), longest=16)
    made = expected(case)
    # Requests take blocks in turn from the last one, four tokens each.
    assert made["positions"][:3] == [7, 10, 0]
    assert made["slot_mapping"][:4] == [16 * 4 + 3, 12 * 4 + 2, -1, -1]
    assert made["seq_lens"][:3] == [8, 11, 1]


def test_slots_of_a_first_pass() -> None:
    made = expected(small("expand"))
    assert made["query_start_loc"] == [0, 4, 9, 11]
    assert made["positions"][:11] == [4, 5, 6, 7, 6, 7, 8, 9, 0, 15, 16]
    assert made["is_rejected"][:11] == [0] * 8 + [1, 0, 0]
    assert made["is_masked"][:11] == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]
    assert made["token_indices_to_sample"] == [2, 3, 6, 7, 9, 10]
    assert made["slot_mapping"][8] == -1


def test_inputs_of_v2() -> None:
    case = small("inputs")
    made = expected(case)
    assert made["positions"][:8] == [4, 5, 6, 6, 7, 8, 9, 15]
    assert made["seq_lens"] == [7, 10, 16, 0, 0]
    assert made["logits_indices"] == [2, 3, 4, 5, 6, 7]
    assert made["expanded_local_pos"] == [0, 0, 1, 2, 3, 0]
    assert made["input_ids"][4:7] == list(case.draft_tokens(1))


def test_states_of_v2() -> None:
    case = small("update")
    made = expected(case)
    assert (made["num_sampled"], made["num_rejected"]) == ([0, 3, 1], [0, 1, 0])
    assert made["num_computed_tokens"] == [7, 9, 16]
    assert made["total_len"] == [9, 10, 17]
    assert made["last_sampled_tokens"][0] == UNTOUCHED
    assert made["last_sampled_tokens"][1] == case.sampled_tokens(1)[-1]


# --- laws -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_what_the_model_says_is_right(form: Form) -> None:
    case = small(form)
    judgement = judge(case, right(case))
    assert judgement.violations == ()
    assert judgement.judged == {law.id for law in INVARIANTS}


def test_a_wrong_number_and_one_that_should_have_stayed() -> None:
    case = small("step")
    seen = right(case)
    changed = tuple(
        replace(each, numbers=(each.numbers[0] + 1, *each.numbers[1:]))
        if each.name == "positions"
        else replace(each, numbers=(*each.numbers[:-1], 0))
        for each in seen.outputs[:2]
    )
    outputs = (*changed, *seen.outputs[2:])
    violations = judge(case, Observation(outputs=outputs, stray=("total",))).violations
    assert [(each.invariant, each.site) for each in violations] == [
        ("DRAFT-INPUTS-VALUES", "step: positions"),
        ("DRAFT-INPUTS-KEEPS", "step: slot_mapping"),
        ("DRAFT-INPUTS-KEEPS", "step: total"),
    ]


def test_a_missing_output_is_wrong() -> None:
    assert len(judge(small("step"), Observation()).violations) == 3


def test_what_is_undecided_passes_nothing() -> None:
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    assert judge(small("step"), Observation(undecided=(doubt,))).judged == frozenset()


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("release", ["0.33.0", "0.20.1"])
def test_steps_of_a_release(releases: Releases, release: str) -> None:
    for form in FORMS:
        judgement = releases(release).call(judge_on, small(form))
        assert judgement.violations == ()
        assert judgement.judged


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("form", "request_"), [("inputs", CHUNK), ("update", DRAFTED)])
def test_tokens_of_a_state_beyond_32_bits(
    releases: Releases, form: Form, request_: Request
) -> None:
    state = 205
    longest = 2**31 // state + 1
    case = replace(
        small(form), requests=(request_,), states=state + 1, longest=longest, padded=1
    )
    judgement = releases("0.33.0").call(judge_on, case)
    assert [each.invariant for each in judgement.violations] == ["DRAFT-INPUTS-EXACT"]
    below = replace(case, states=state)
    assert releases("0.33.0").call(judge_on, below).violations == ()
