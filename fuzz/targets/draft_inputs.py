"""Makes the next step's inputs from sampled tokens and drafts, under the checker.

V1's forms are methods of the proposer that every drafter shares, V2's the functions of
its input batch in the order of the model runner.
"""

from collections.abc import Callable
from importlib import import_module

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets import _draft_inputs_v1, _draft_inputs_v2
from fuzz.targets._checked import findings_of
from fuzz.targets._draft_tensors import Tensors
from fuzz.targets._escaped import tree_raised
from invariants.draft_inputs import Observation
from invariants.draft_inputs_case import Case, Form
from invariants.memory.launches import checked_launches

_UTILITIES = "vllm.v1.spec_decode.utils"

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="draft_inputs: rejected drafts stay",
        origin="contract",
        edits=(
            SourceEdit(
                modules=(_UTILITIES,),
                function="eagle_prepare_inputs_padded_kernel",
                old="index_to_sample = q_last_tok_idx - num_rejected_tokens",
                new="index_to_sample = q_last_tok_idx",
            ),
        ),
        invariant="DRAFT-INPUTS-VALUES",
        cases=150,
    ),
)
_FORMS: dict[Form, Callable[[Case, Tensors], str | None]] = {
    "next_tokens": _draft_inputs_v1.next_tokens,
    "step": _draft_inputs_v1.step,
    "expand": _draft_inputs_v1.expand,
    "inputs": _draft_inputs_v2.inputs,
    "update": _draft_inputs_v2.update,
}


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    try:
        import_module(_UTILITIES)
        import_module("vllm.v1.spec_decode.llm_base_proposer")
    except ModuleNotFoundError as error:
        return f"no module {error.name}"
    return None


def run(case: Case) -> Observation:
    """Make the inputs of the case's form once, and judge every access."""
    tensors = Tensors()
    with checked_launches(tensors.memory) as log:
        try:
            skipped = _FORMS[case.form](case, tensors)
        except Exception as error:  # noqa: BLE001 - an observation too
            return Observation(raised=tree_raised(error))
    if skipped:
        return Observation(skipped=skipped)
    found = findings_of(log)
    clean = not found and not log.undecided
    return Observation(
        findings=found,
        undecided=log.undecided,
        outputs=tensors.outputs() if clean else (),
        stray=tensors.stray() if clean else (),
    )
