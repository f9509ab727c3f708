"""The aligned Mamba block table: the judge, the cases, and what releases show."""

import ast
import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from fuzz.trees import resolve
from invariants.mamba_block_table import INVARIANTS, judge, reference_window
from invariants.mamba_table_values import (
    Case,
    Decode,
    Engine,
    GivenTable,
    Hit,
    Observation,
    Served,
    ServedRequest,
    ServedStep,
    WindowCall,
)
from invariants.memory.findings import Finding, Kind, Undecided
from invariants.model import CaseError, Origin, Raised, decode, encode
from reproducers import store
from reproducers.script import script
from strategies.mamba_block_table import cases
from tests.elsewhere import Elsewhere, Releases
from tests.release_search import Searched, searched
from tests.strategy_search import find_any, minimal

ROOT = Path(__file__).parent.parent
WINDOW = "mamba_get_block_table_tensor"
KERNEL = "_mamba_align_block_table_kernel"
TABLE = f"{KERNEL}: block_table_ptr"
SIZING = "GPUModelRunner.may_reinitialize_input_batch"

# Four blocks of 16 tokens, one speculative block; the row's ids are 11..14.
CONTRACT = Case(
    format_version=1,
    origin="contract",
    mode="align",
    branch="torch",
    max_model_len=64,
    block_size=16,
    num_speculative_blocks=1,
    given=GivenTable(seq_lens=(33,)),
)
WIRED = replace(
    CONTRACT,
    origin="wired",
    given=None,
    engine=Engine(
        attention_block_sizes=(16,),
        pool_blocks=32,
        max_num_reqs=2,
        requests=(ServedRequest(prompt_tokens=33),),
    ),
)
CALL = WindowCall(
    step=0,
    table=((11, 12, 13, 14),),
    seq_lens=(33,),
    result=((13, 14),),
    result_shape=(1, 2),
    result_dtype="int32",
    inputs_kept=True,
)
SERVED = replace(CALL, owned=((0, 0, 13, 14),), used=(2,))


def broken(case: Case, **changes: Any) -> list[str]:
    """Invariants that a call with these changes breaks."""
    call = replace(CALL if case.origin == "contract" else SERVED, **changes)
    judgement = judge(case, Observation(calls=(call,)))
    return sorted(violation.invariant for violation in judgement.violations)


# The reference and the judge


def test_the_reference_gives_the_null_block_beyond_the_row() -> None:
    row = (11, 12, 13, 14)
    assert reference_window(row, first_column=0, window=2) == (11, 12)
    assert reference_window(row, first_column=3, window=3) == (14, 0, 0)


@pytest.mark.parametrize(
    ("seq_len", "column"), [(0, 0), (1, 0), (16, 0), (17, 1), (33, 2), (64, 3)]
)
def test_a_window_starts_at_the_column_of_the_last_token(
    seq_len: int, column: int
) -> None:
    assert CONTRACT.first_column(seq_len) == column


def test_right_windows_break_nothing() -> None:
    assert broken(CONTRACT) == []
    assert broken(CONTRACT, seq_lens=(64,), result=((14, 0),)) == []
    assert broken(WIRED) == []


@pytest.mark.parametrize(
    ("changes", "invariant"),
    [
        (
            {"result": Raised(type="RuntimeError", message="index 4", site=WINDOW)},
            "BOUNDS",
        ),
        ({"seq_lens": (64,), "result": ((14, 77),)}, "BOUNDS"),
        ({"result": ((13, 77),)}, "BOUNDS"),
        ({"result": ((12, 13),)}, "WINDOW"),
        ({"result": ((13, 0),)}, "WINDOW"),
        ({"seq_lens": (0,), "result": ((12, 13),)}, "ROWS"),
        ({"result": ((13,),), "result_shape": (1, 1)}, "ROWS"),
        ({"result_dtype": "int64"}, "ROWS"),
        ({"inputs_kept": False}, "PURE"),
    ],
)
def test_wrong_windows_break_their_own_law(
    changes: dict[str, Any], invariant: str
) -> None:
    assert broken(CONTRACT, **changes) == [f"GDN-ALIGN-{invariant}"]


OUTSIDE = Finding(
    kind="outside the view",
    kernel=KERNEL,
    file="vllm/backends/utils.py",
    line=7,
    expression="tl.load(block_table_ptr + at)",
    tensor="block_table_ptr",
    write=False,
    program=(0, 0, 0),
    lane=(1,),
    value=4,
    wrapped=4,
    limit=4,
    lanes=1,
    arithmetic="element 4 of 4",
)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        ("outside the view", "GDN-ALIGN-ACCESS"),
        ("wrapped", "GDN-ALIGN-EXACT"),
        ("read-only", "GDN-ALIGN-STORES"),
        ("stored twice", "GDN-ALIGN-STORES"),
    ],
)
def test_accesses_break_laws_of_their_own(kind: Kind, law: str) -> None:
    case = replace(CONTRACT, branch="triton")
    assert {"GDN-ALIGN-EXACT", "GDN-ALIGN-ACCESS", "GDN-ALIGN-STORES"} <= judge(
        case, Observation(calls=(CALL,))
    ).judged
    seen = Observation(calls=(CALL,), findings=(replace(OUTSIDE, kind=kind),))
    (found,) = judge(case, seen).violations
    assert (found.invariant, found.site) == (law, TABLE)


def test_what_is_undecided_passes_nothing() -> None:
    doubt = Undecided(kernel=KERNEL, reason="tt.new is unknown", place="k.py:1")
    judgement = judge(CONTRACT, Observation(calls=(CALL,), undecided=(doubt,)))
    assert judgement.judged == frozenset()
    assert judgement.skipped.startswith("undecided: ")


@pytest.mark.parametrize(
    ("id_", "alone"),
    [("mamba-block-table-85d4c5ff", True), ("mamba-block-table-77960cca", False)],
)
def test_a_script_stands_alone_where_the_interpreter_shows_the_fault(
    id_: str, *, alone: bool
) -> None:
    text = script(store.read(store.STORE, id_))
    assert ("interpreted_kernels" in text) is alone
    assert ("from fuzz.targets.mamba_block_table import" in text) is not alone
    # The fix is a function of ours, which a script without it has to find.
    assert ('home="reproducers.fixes.mamba_block_table"' in text) is not alone
    assert "class CheckedKernels" not in text


def test_other_modes_hand_the_table_through() -> None:
    through = replace(CONTRACT, mode="none")
    assert broken(through, result=CALL.table) == []
    assert broken(through) == ["GDN-TABLE-IDENTITY"]
    wide = {"result": CALL.table, "result_dtype": "int64"}
    assert broken(through, **wide) == ["GDN-TABLE-IDENTITY"]


@pytest.mark.parametrize(
    "changes",
    [
        # Another block than the KV-cache manager's.
        {"owned": ((0, 0, 13, 15),)},
        # A block that is nobody's, and is used.
        {"owned": ((0, 0, 13, 0),)},
        # One block for two states.
        {
            "table": ((11, 12, 13, 13),),
            "result": ((13, 13),),
            "owned": ((0, 0, 13, 0),),
        },
    ],
)
def test_windows_of_other_blocks_than_the_requests_are_found(
    changes: dict[str, Any],
) -> None:
    assert broken(WIRED, **changes) == ["GDN-ALIGN-OWNED"]


def test_a_wrong_window_of_a_right_row_is_the_windows_fault_alone() -> None:
    (violation,) = judge(
        WIRED, Observation(calls=(replace(SERVED, result=((12, 13),)),))
    ).violations
    assert (violation.invariant, violation.site) == ("GDN-ALIGN-WINDOW", WINDOW)
    raised = Raised(type="RuntimeError", message="index 4", site=WINDOW)
    wrong_row = ((11, 12, 15, 14),)
    assert broken(WIRED, result=raised, table=wrong_row) == [
        "GDN-ALIGN-BOUNDS",
        "GDN-ALIGN-OWNED",
    ]


def test_rows_that_move_are_told_from_rows_that_change_places() -> None:
    def labels(*moves: tuple[int, int]) -> frozenset[str]:
        seen = Observation(calls=(replace(SERVED, moves=moves),))
        return judge(WIRED, seen).labels & {"moved row", "exchanged rows"}

    assert labels() == frozenset()
    assert labels((2, 0)) == {"moved row"}
    assert labels((2, 0), (0, 2)) == {"moved row", "exchanged rows"}


def test_a_wrong_row_is_blamed_on_the_deed_that_left_it_so() -> None:
    wrong = replace(SERVED, owned=((0, 0, 13, 15),))
    taken_along, exchanged = ((2, 0),), ((1, 0), (0, 1))

    def site(*calls: WindowCall, case: Case = WIRED) -> str:
        (violation,) = judge(case, Observation(calls=calls)).violations
        return violation.site.rpartition(".")[2]

    assert site(wrong) == "append_row"
    assert site(replace(wrong, moves=taken_along)) == "move_row"
    assert site(replace(wrong, moves=exchanged)) == "swap_row"
    # It shows later; but not in the row of a request that came later.
    moved = replace(SERVED, moves=taken_along)
    assert site(moved, wrong) == "move_row"
    other = replace(wrong, table=((21, 22, 23, 24),), result=((23, 24),))
    assert site(moved, replace(other, owned=((0, 0, 23, 25),))) == "append_row"
    # What fills rows wrongly does so to those that stay as well.
    both = replace(
        wrong,
        table=((11, 12, 13, 14),) * 2,
        seq_lens=(33, 33),
        result=((13, 14),) * 2,
        result_shape=(2, 2),
        owned=((0, 0, 13, 15),) * 2,
        used=(2, 2),
        moves=taken_along,
    )
    assert site(both) == "append_row"
    assert WIRED.engine is not None
    v2 = replace(WIRED, engine=replace(WIRED.engine, runner="v2"))
    assert site(wrong, case=v2) == "append_block_ids"


def test_a_moved_block_may_still_be_used_where_it_was() -> None:
    # The manager has moved block 13 to the end of its list.
    assert (
        broken(WIRED, owned=((0, 0, 0, 14, 13),), table=((11, 12, 13, 14, 13),)) == []
    )


def test_a_table_without_room_is_the_sizings_fault_alone() -> None:
    lost = {
        "owned": ((0, 0, 13, 14, 15),),
        "result": Raised(type="RuntimeError", message="index 4", site=WINDOW),
    }
    assert broken(WIRED, **lost) == ["GDN-TABLE-FITS"]
    refused = Observation(
        unfit=Raised(type="ValueError", message="shape", site=""), unfit_columns=(5, 4)
    )
    (violation,) = judge(WIRED, refused).violations
    assert (violation.invariant, violation.site) == ("GDN-TABLE-FITS", SIZING)
    assert "a row of 5 blocks does not fit the table of 4 columns" in violation.message


def test_what_the_manager_raises_is_found() -> None:
    raised = Raised(type="AssertionError", message="8 < 9", site="MambaManager.f")
    (violation,) = judge(WIRED, Observation(unallocated=raised)).violations
    assert violation.invariant == "GDN-BLOCKS-GIVEN"
    assert violation.message.endswith("raised AssertionError: 8 < 9")


# Prefix-cache hits: blocks of 16 tokens, the null block before the last one.

# A prompt of 40 tokens leaves the state after 16 tokens in block 5, after 32 in 6.
FIRST = Served(
    prompt=0,
    start=0,
    end=16,
    scheduled=16,
    decodes=False,
    blocks=(5,),
    received=(5,),
    hit=Hit(tokens=0, request_tokens=40, blocks=()),
)
NEXT = replace(FIRST, start=16, end=32, blocks=(5, 6), received=(6,), hit=None)
AFTER_HIT = replace(
    FIRST,
    start=32,
    end=40,
    scheduled=8,
    blocks=(0, 6, 7),
    received=(7,),
    hit=Hit(tokens=32, request_tokens=40, blocks=(0, 6)),
)


def hit_broken(later: Served, *steps: ServedStep) -> list[str]:
    """Laws that a hit breaks after the steps above, and these."""
    before = (
        ServedStep(number=0, served=(FIRST,)),
        ServedStep(number=1, served=(NEXT,)),
    )
    last = ServedStep(number=9, served=(later,))
    observation = Observation(steps=(*before, *steps, last))
    judgement = judge(WIRED, observation)
    assert "GDN-HIT-STATE" in judgement.judged
    assert decode(encode(observation), Observation) == observation
    return [f"{each.invariant} {each.message}" for each in judgement.violations]


def test_hits_of_states_that_are_held_break_nothing() -> None:
    assert hit_broken(AFTER_HIT) == []
    none = Hit(tokens=0, request_tokens=40, blocks=())
    assert hit_broken(replace(AFTER_HIT, hit=none)) == []
    # A decode that passes a boundary leaves the state there, and none in its drafts'.
    passing = replace(
        NEXT, start=30, end=34, scheduled=4, decodes=True, blocks=(5, 6, 8, 9)
    )
    assert hit_broken(AFTER_HIT, ServedStep(number=2, served=(passing,))) == []
    # A copy holds the same state, whatever becomes of the first block.
    reused = replace(FIRST, prompt=1, blocks=(6,), received=(6,))
    steps = (
        ServedStep(number=2, served=(), copies=((6, 9),)),
        ServedStep(number=3, served=(reused,)),
    )
    copied = replace(AFTER_HIT, hit=Hit(tokens=32, request_tokens=40, blocks=(0, 9)))
    assert hit_broken(copied, *steps) == []


@pytest.mark.parametrize(
    ("hit", "text"),
    [
        ({"blocks": (0, 5)}, "holds the one after 16 tokens of prompt 0"),
        ({"blocks": (6, 6)}, "block 6 for the state after 16 tokens"),
        ({"blocks": (0, 4)}, "holds none that is known"),
        ({"blocks": (0, 0)}, "the last state is in block 2"),
        ({"tokens": 40}, "leaves none of 40 tokens"),
        ({"tokens": 33}, "names 2 blocks, the last state is in block 3"),
        ({"tokens": 24}, "for the state after 24 tokens"),
    ],
)
def test_wrong_hits_break_their_law(hit: dict[str, Any], text: str) -> None:
    assert AFTER_HIT.hit is not None
    (broken_law,) = hit_broken(replace(AFTER_HIT, hit=replace(AFTER_HIT.hit, **hit)))
    assert broken_law.startswith("GDN-HIT-STATE")
    assert text in broken_law


def test_a_state_is_of_one_prompt_and_gone_with_its_block() -> None:
    assert "of prompt 1" in hit_broken(replace(AFTER_HIT, prompt=1))[0]
    given_away = replace(FIRST, received=(6,), blocks=(3,))
    gone = hit_broken(AFTER_HIT, ServedStep(number=2, served=(given_away,)))
    assert "holds none that is known" in gone[0]
    drafted = replace(
        NEXT, start=12, end=13, scheduled=5, decodes=True, blocks=(5, 6), received=()
    )
    gone = hit_broken(AFTER_HIT, ServedStep(number=2, served=(drafted,)))
    assert "holds none that is known" in gone[0]


def test_what_a_tree_lacks_is_not_judged() -> None:
    judgement = judge(WIRED, Observation(absent="mode all is absent in this tree"))
    assert not judgement.judged
    assert judgement.skipped == "mode all is absent in this tree"


# Cases


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"given": GivenTable(seq_lens=(65,))}, "65 beyond max_model_len 64"),
        ({"given": None}, "gives a table where it must not"),
        ({"engine": WIRED.engine}, "has an engine where it must not"),
    ],
)
def test_inconsistent_cases_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONTRACT, **wrong)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens accepted of 1 drafts"):
        Decode(drafts=1, accepted=2)
    with pytest.raises(ValueError, match="leaves no room"):
        replace(WIRED, max_model_len=33)
    huge = encode(CONTRACT).replace('"block_size":16', '"block_size":99999999999')
    with pytest.raises(CaseError, match="block_size"):
        decode(huge, Case)


def table(case: Case) -> GivenTable:
    assert case.given is not None
    return case.given


def engine(case: Case) -> Engine:
    assert case.engine is not None
    return case.engine


@pytest.mark.parametrize(
    "reached",
    [
        lambda case: case.max_model_len in table(case).seq_lens,
        lambda case: 0 in table(case).seq_lens and len(table(case).seq_lens) == 4,
        lambda case: case.num_speculative_blocks == 16,
        lambda case: table(case).column_step == 2 and table(case).row_gap > 0,
        lambda case: case.branch == "triton" and table(case).first_row > 0,
        lambda case: case.max_model_len % case.block_size != 0,
        lambda case: table(case).far and len(table(case).seq_lens) > 2,
        lambda case: case.mode == "none",
        lambda case: case.mode == "all",
    ],
)
def test_contract_cases_reach(reached: Callable[[Case], bool]) -> None:
    find_any(cases(origin="contract"), reached)


@pytest.mark.parametrize(
    "reached",
    [
        lambda case: not engine(case).attention_block_sizes,
        lambda case: len(set(engine(case).attention_block_sizes)) == 2,
        lambda case: engine(case).runner == "v2",
        lambda case: case.mode == "none",
        lambda case: any(
            request.prompt_tokens == case.max_model_len - 1
            for request in engine(case).requests
        ),
        lambda case: len({r.family for r in engine(case).requests}) == 2,
        lambda case: any(
            len({step.drafts for step in request.decodes}) == 3
            for request in engine(case).requests
        ),
    ],
)
def test_wired_cases_reach(reached: Callable[[Case], bool]) -> None:
    find_any(cases(origin="wired"), reached)


def test_cases_shrink_to_little() -> None:
    assert minimal(cases(origin="contract")).given == GivenTable(seq_lens=(0,))
    wired = minimal(cases(origin="wired"))
    assert wired.engine is not None
    assert wired.engine.requests == (ServedRequest(prompt_tokens=1),)
    assert wired.max_model_len == 2


@settings(max_examples=150, database=None, deadline=None, derandomize=True)
@given(cases(origin="contract"))
def test_contract_cases_survive_json(case: Case) -> None:
    assert decode(encode(case), Case) == case


@settings(max_examples=150, database=None, deadline=None, derandomize=True)
@given(cases(origin="wired"))
def test_wired_cases_survive_json(case: Case) -> None:
    assert decode(encode(case), Case) == case


def test_controls_lie_outside_of_what_a_fix_of_the_window_changes() -> None:
    # Importing the target would import vLLM: its controls are read as text.
    text = (ROOT / "fuzz/targets/mamba_block_table.py").read_text(encoding="utf-8")
    planted = [
        ast.literal_eval(keyword.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "old"
    ]
    assert planted
    for old in planted:
        assert not re.search(r"seq_lens|cdiv|speculative|gather", old), old


# What releases show


def on(
    tree: Elsewhere, origin: Origin, count: int, *, fixed: bool = False, seed: int = 7
) -> Searched:
    return tree.call(
        searched, "mamba_block_table", origin, count, fixed=fixed, seed=seed
    )


def branches(found: Searched) -> dict[str, set[str]]:
    """By site, the branches that showed a fault."""
    return {
        first.site: {case.branch for case in shown}
        for first, shown in found.faults.values()
    }


@pytest.mark.subject
def test_the_documented_table_is_too_narrow_in_0_20_1(releases: Releases) -> None:
    found = on(releases("0.20.1"), "contract", 300)
    assert found.fault_keys() == {("GDN-ALIGN-BOUNDS", WINDOW, "RuntimeError")}
    assert branches(found) == {WINDOW: {"torch", "triton"}}


@pytest.mark.subject
def test_the_kernel_of_0_33_0_reads_beyond_the_row_without_a_word(
    releases: Releases,
) -> None:
    found = on(releases("0.33.0"), "contract", 300)
    assert found.fault_keys() == {
        ("GDN-ALIGN-BOUNDS", WINDOW, "RuntimeError"),
        ("GDN-ALIGN-BOUNDS", KERNEL, ""),
        ("GDN-ALIGN-ACCESS", TABLE, ""),
    }
    shown = {WINDOW: {"torch"}, KERNEL: {"triton"}, TABLE: {"triton"}}
    assert branches(found) == shown


@pytest.mark.subject
@pytest.mark.parametrize("count", [250, pytest.param(3000, marks=pytest.mark.slow)])
def test_nothing_wired_breaks_in_0_33_0(releases: Releases, count: int) -> None:
    assert on(releases("0.33.0"), "wired", count).faults == {}


@pytest.mark.subject
@pytest.mark.parametrize(
    # The first one is rare: with this seed a few cases show it.
    ("count", "seed"),
    [(400, 3), pytest.param(3000, 0, marks=pytest.mark.slow)],
)
def test_wired_faults_of_0_20_1(releases: Releases, count: int, seed: int) -> None:
    # vLLM issue 39271; and models without attention, whose tables stay narrow.
    found = on(releases("0.20.1"), "wired", count, seed=seed)
    assert found.fault_keys() == {
        ("GDN-BLOCKS-GIVEN", "MambaManager.allocate_new_blocks", "AssertionError"),
        ("GDN-TABLE-FITS", SIZING, ""),
    }
    assert narrow_hybrids(found) == 0


@pytest.mark.subject
@pytest.mark.parametrize("release", ["0.20.1", "0.33.0"])
@pytest.mark.parametrize(
    ("origin", "count"),
    [
        ("contract", 500),
        ("wired", 300),
        pytest.param("contract", 5000, marks=pytest.mark.slow),
        pytest.param("wired", 3000, marks=pytest.mark.slow),
    ],
)
def test_the_fixes_satisfy_every_law(
    releases: Releases, release: str, origin: Origin, count: int
) -> None:
    found = on(releases(release), origin, count, fixed=True)
    assert found.faults == {}
    assert found.cases >= count
    assert not found.unmet(INVARIANTS, origin=origin)


def narrow_hybrids(found: Searched) -> int:
    """Models with attention groups whose rows did not fit their table."""
    return sum(
        bool(case.engine and case.engine.attention_block_sizes)
        for first, shown in found.faults.values()
        for case in shown
        if first.invariant == "GDN-TABLE-FITS"
    )


# What sizes the Mamba group's columns, and the same without speculative blocks.
NARROWED = {
    "0.20.1": (
        "vllm/v1/worker/gpu_model_runner.py",
        ") + kv_cache_group.kv_cache_spec.num_speculative_blocks",
        ")",
    ),
    "0.33.0": (
        "vllm/v1/kv_cache_interface.py",
        "cdiv(max_len, self.block_size) + self.num_speculative_blocks",
        "cdiv(max_len, self.block_size)",
    ),
}


@pytest.mark.subject
@pytest.mark.parametrize("release", sorted(NARROWED))
def test_a_patch_of_the_sizing_line_flips_the_verdict(
    release: str, tmp_path: Path
) -> None:
    name, old, new = NARROWED[release]
    text = (resolve(release).root / name).read_text(encoding="utf-8")
    assert text.count(old) == 1
    diff = difflib.unified_diff(
        text.splitlines(keepends=True),
        text.replace(old, new).splitlines(keepends=True),
        fromfile=f"a/{name}",
        tofile=f"b/{name}",
    )
    (tmp_path / "0001-narrow.patch").write_text("".join(diff), encoding="utf-8")
    # As it is, only models without attention are too narrow, and in 0.20.1 alone.
    with Elsewhere(release, patches=tmp_path) as narrowed:
        assert narrow_hybrids(on(narrowed, "wired", 60)) > 0
