"""Verify attention: strategy, geometry, reference and laws; then real kernels.

The tests on releases run each case in a process that may die of it, as a campaign does.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from fuzz import rooms
from fuzz.edits import SourceEdit
from fuzz.execution import Executor
from invariants.kernel_shapes import KernelShape
from invariants.model import CaseError, Death, Judgement, decode, encode
from invariants.scheduling import PrefixLayout
from invariants.verify_attention import (
    ADDRESS,
    ARMS,
    ENDS,
    VALUES,
    WRITES,
    Mismatch,
    Observation,
    judge,
)
from invariants.verify_case import INT32_LIMIT, Case, geometry
from reproducers.fixes.verify_attention import FIXES
from strategies.verify_attention import cases, control_cases
from tests.elsewhere import Elsewhere, Releases
from tests.strategy_search import find_any, minimal

TARGET = "verify_attention"
ROOT = Path(__file__).parents[1]
CASE = Case(
    format_version=1,
    origin="contract",
    kernel="unified_2d",
    dtype="float16",
    cache="auto",
    shape=KernelShape(kv_heads=1, queries_per_kv=2, head_size=32),
    layout=PrefixLayout(
        pool_blocks=5,
        block_sizes=(16,),
        num_tokens=(17, 4),
        block_ids=(((3, 4), (2,)),),
        prefix_tokens=(0, 0),
    ),
    query_lens=(3, 1),
    window=0,
    page="halves",
    order="tokens",
    layers=1,
    padding=0,
    fused_query=True,
    seed=1,
)
# The size of the public report: 880 tokens, 4 heads of 256, a request in the last block
# of 2,600; ids above 2,383 wrap.
REPORTED = replace(
    CASE,
    kernel="control_broken",
    dtype="bfloat16",
    shape=KernelShape(kv_heads=4, queries_per_kv=1, head_size=256),
    layout=PrefixLayout(
        pool_blocks=2600,
        block_sizes=(880,),
        num_tokens=(40,),
        block_ids=(((2599,),),),
        prefix_tokens=(0,),
    ),
    query_lens=(8,),
    page="apart",
)
# Two scale planes of half a limit each: the third head's offset is 2^31.
SCALE_PLANES = replace(
    CASE,
    cache="int8_per_token_head",
    shape=KernelShape(kv_heads=3, queries_per_kv=1, head_size=32),
    layout=replace(CASE.layout, pool_blocks=INT32_LIMIT // 2 // (16 * 2 * 36 // 4) + 1),
    page="interleaved",
    order="planes",
)


def broken(judgement: Judgement) -> list[str]:
    return [violation.invariant for violation in judgement.violations]


# --- strategy -------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, database=None)
@given(case=cases(origin="contract") | cases(origin="wired") | control_cases())
def test_cases_are_valid_and_survive_json(case: Case) -> None:
    assert decode(encode(case), Case) == case
    assert len(encode(case)) < 2000


def test_boundaries_are_reached() -> None:
    drawn = cases(origin="contract")
    past = find_any(drawn, lambda c: c.top_block * geometry(c).block_stride > 2**32)
    assert (
        past.top_block == past.layout.pool_blocks - 1 or past.layout.pool_blocks > 2**8
    )
    # One in some thousands: which draws come first depends on the modules loaded.
    assert find_any(drawn, lambda c: max(c.query_lens) == 65, max_examples=10_000)
    assert find_any(drawn, lambda c: max(c.layout.prefix_tokens) > 0)
    assert find_any(drawn, lambda c: c.window > 0 and 0 in c.layout.block_ids[0][0])
    assert find_any(
        cases(origin="wired"),
        lambda c: c.order == "planes" and c.scaled and c.may_wrap,
    )


def test_controls_wrap_and_shrink() -> None:
    assert find_any(control_cases(), lambda c: c.may_wrap, max_examples=20)
    smallest = minimal(control_cases(), lambda c: c.may_wrap)
    assert smallest.layout.num_tokens == (1,)
    assert smallest.query_lens == (1,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query_lens": (3,)}, "1 query lengths for 2"),
        ({"query_lens": (18, 1)}, "18 query tokens of 17"),
        ({"padding": 2**26, "layers": 64, "cache": "fp8"}, None),
        (
            {"layout": replace(CASE.layout, pool_blocks=2**24), "padding": 2**26},
            "a pool of",
        ),
        (
            {
                "cache": "fp8_per_token_head",
                "shape": replace(CASE.shape, head_size=33),
            },
            "multiple of 4",
        ),
    ],
)
def test_impossible_cases_are_refused(
    change: dict[str, object], says: str | None
) -> None:
    if says is None:
        assert replace(CASE, **change)  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match=says):
        replace(CASE, **change)  # type: ignore[arg-type]


def test_a_file_with_a_forgotten_token_in_sight_is_refused() -> None:
    case = json.loads(encode(CASE))
    case["layout"]["block_ids"] = [[[0, 4], [2]]]
    case["layout"]["kept_columns"] = [1]
    case["window"] = 8
    with pytest.raises(CaseError, match="forgotten 16 tokens"):
        decode(json.dumps(case), Case)


# --- geometry -------------------------------------------------------------------------


@settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(case=cases(origin="contract", max_requests=1))
def test_elements_of_a_pool_do_not_overlap(case: Case) -> None:
    blocks = 3
    layout = PrefixLayout(
        pool_blocks=blocks,
        block_sizes=(min(case.block_size, 8),),
        num_tokens=(1,),
        block_ids=(((2,),),),
        prefix_tokens=(0,),
    )
    small = replace(case, layout=layout, query_lens=(1,), window=0, padding=16)
    place, size = geometry(small), small.shape.head_size
    seen: set[int] = set()
    cells = [
        (block, slot, head)
        for block in range(blocks)
        for slot in range(small.block_size)
        for head in range(small.shape.kv_heads)
    ]
    for block, slot, head in cells:
        at = (
            block * place.block_stride
            + slot * place.slot_stride
            + head * place.head_stride
        )
        taken: list[int] = []
        for offset in (place.key_offset, place.value_offset):
            first = (offset + at) * place.element_bytes
            taken += range(first, first + size * place.element_bytes)
        if small.scaled:
            stride = place.scale_strides
            scale = block * stride[0] + slot * stride[1] + head * stride[2]
            for offset in (place.key_scale_offset, place.value_scale_offset):
                taken += range(4 * (offset + scale), 4 * (offset + scale) + 4)
        assert not seen & set(taken)
        seen.update(taken)
    assert max(seen) < place.size_bytes


# --- laws -----------------------------------------------------------------------------


def test_a_death_is_the_finding_and_says_so() -> None:
    (violation,) = judge(CASE, Death(cause="signal 11", detail="")).violations
    assert violation.invariant == ADDRESS.id
    assert violation.site == "kernel_unified_attention"
    assert "expected outcome of an unfixed tree" in violation.message
    assert "killed process" in ADDRESS.statement
    assert broken(judge(CASE, Death(cause="timed out", detail=""))) == [ENDS.id]


def test_a_skip_judges_nothing_and_names_its_reason() -> None:
    judgement = judge(CASE, Observation(skipped="no such kernel"))
    assert not judgement.judged
    assert judgement.skipped == "no such kernel"


def test_wrong_values_and_writes_are_told_apart() -> None:
    wrong = Mismatch(
        outside=1,
        elements=2,
        token=0,
        head=1,
        dim=3,
        got="nan",
        expected="1",
        allowed="0.1",
    )
    seen = Observation(block_stride=1, element_bytes=2)
    assert broken(judge(CASE, seen)) == []
    assert broken(judge(CASE, replace(seen, mismatch=wrong))) == [VALUES.id]
    assert broken(judge(CASE, replace(seen, changed=("the query",)))) == [WRITES.id]


def test_arms_must_agree_and_are_no_finding_otherwise() -> None:
    case = replace(CASE, kernel="control_fixed")
    assert broken(judge(case, Observation(twin_differs=2))) == [ARMS.id]
    assert judge(case, Observation(twin_differs=0)).judged == {ARMS.id}
    assert not judge(case, Observation()).judged


def test_reference_and_tolerance() -> None:
    import torch

    from invariants.dense_attention import dense_attention

    value = torch.tensor([[[1.0]], [[3.0]], [[100.0]]], dtype=torch.float64)
    key = torch.zeros_like(value)
    query = torch.ones((2, 1, 1), dtype=torch.float64)

    def attend(window: int, dtype: str) -> tuple[list[float], float]:
        dense = dense_attention(
            query=query,
            key=key,
            value=value,
            scale=1.0,
            window=window,
            dtype=dtype,
            rounded_cache=False,
            stored_max=100.0,
        )
        return dense.output.flatten().tolist(), float(dense.allowed[0])

    # Equal weights: the first of two query tokens sees two keys, the last one three.
    output, half = attend(0, "float16")
    assert output == pytest.approx([2.0, 104 / 3])
    assert attend(1, "float16")[0] == [3.0, 100.0]
    # Twice the roundoff of a mean of 2 (weight, output), and little else.
    assert 2 * 2.0**-10 < half < 2.2 * 2.0**-10
    assert attend(0, "bfloat16")[1] == pytest.approx(8 * half, rel=0.1)


# --- the pool and the interpreter, each in a process of its own -----------------------


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_only_opened_pages_of_a_pool_exist() -> None:
    code = """
import torch
from fuzz.targets._sparse_pool import sparse_pool
with sparse_pool(1 << 42) as pool:
    at = 1 << 41
    pool.open([(at, at + 10)])
    before = pool.checksum()
    assert pool.bytes[at : at + 20].view(torch.float16).isnan().all()
    pool.bytes[at] = 1
    assert pool.checksum() != before
    print("opened", flush=True)
    print(pool.bytes[{other}])
"""
    inside = child(code.replace("{other}", "at + 4000"))
    assert (inside.returncode, inside.stdout) == (
        0,
        "opened\ntensor(255, dtype=torch.uint8)\n",
    )
    for other in ("at + 4096", "at - 1", "0"):
        dead = child(code.replace("{other}", other))
        assert (dead.returncode, dead.stdout) == (-11, "opened\n"), other


def test_corrected_interpreter_rounds_widens_and_honours_annotations() -> None:
    code = """
from fuzz.boot import prepare
prepare(platform="cpu", triton="interpret")
import torch, triton, triton.language as tl
from triton.runtime import interpreter
from fuzz.targets._interpreter import corrected_interpreter
from tests.toy_kernels import dot_kernel, stride_kernel
names = ("cast_impl", "binary_op", "create_dot", "get_bf16")
before = [getattr(interpreter.InterpreterBuilder, name, None) for name in names]
x = torch.randn(16, 16).bfloat16()
out = torch.empty(16, 16, dtype=torch.bfloat16)
at = torch.empty(2, dtype=torch.int64)
two = torch.tensor([2], dtype=torch.int32)
with corrected_interpreter():
    dot_kernel[(1,)](x, out)
    stride_kernel[(1,)](two, at, 2**30, 2**30)
assert torch.equal(out, (x.float() @ x.float() + 1).bfloat16()), (out, x)
assert at.tolist() == [2**31, -(2**31)], at
assert before == [getattr(interpreter.InterpreterBuilder, name, None) for name in names]
print("good")
"""
    done = child(code)
    assert done.stdout == "good\n", done.stderr


# --- releases -------------------------------------------------------------------------


@pytest.fixture
def newest(releases: Releases) -> Elsewhere:
    return releases("0.33.0")


def observe(executor: Executor, case: Case) -> Observation:
    observation: Observation = executor.execute(rooms.load(TARGET), case)
    return observation


def judge_on(
    executor: Executor, case: Case, edits: tuple[SourceEdit, ...]
) -> Judgement:
    return executor.judge(rooms.load(TARGET), case, edits=edits)


def judged(
    subject: Elsewhere, case: Case, edits: tuple[SourceEdit, ...] = ()
) -> Judgement:
    return subject.call(judge_on, case, edits)


@pytest.mark.subject
@pytest.mark.network
def test_the_public_fault_dies_and_its_cure_computes(newest: Elsewhere) -> None:
    dead = judged(newest, REPORTED)
    assert [(v.invariant, v.exception) for v in dead.violations] == [
        (ADDRESS.id, "signal 11")
    ]
    cured = newest.call(observe, replace(REPORTED, kernel="control_fixed"))
    assert cured.mismatch is None
    assert cured.twin_differs is None
    below = replace(
        REPORTED,
        kernel="control_fixed",
        layout=replace(REPORTED.layout, pool_blocks=2384, block_ids=(((2383,),),)),
    )
    assert newest.call(observe, below).twin_differs == 0


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("origin", ["contract", "wired"])
@pytest.mark.parametrize("cache", ["auto", "fp8", "int8_per_token_head"])
def test_real_kernels_are_right_on_a_plain_case(
    newest: Elsewhere, origin: str, cache: str
) -> None:
    case = replace(CASE, origin=origin, cache=cache, dtype="bfloat16")  # type: ignore[arg-type]
    judgement = judged(newest, case)
    assert broken(judgement) == []
    assert VALUES.id in judgement.judged


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("origin", ["contract", "wired"])
def test_scale_offsets_of_heads_wrap_until_fixed(
    newest: Elsewhere, origin: str
) -> None:
    case = replace(SCALE_PLANES, origin=origin)  # type: ignore[arg-type]
    assert broken(judged(newest, case)) == [ADDRESS.id]
    (fix,) = FIXES
    fixed = judged(newest, case, edits=fix.edits)  # type: ignore[arg-type]
    assert broken(fixed) == []
    assert VALUES.id in fixed.judged
    below = replace(case, layout=replace(case.layout, pool_blocks=2**20))
    assert broken(judged(newest, below)) == []


@pytest.mark.subject
@pytest.mark.network
def test_0_20_1_keeps_scale_offsets_in_64_bits(releases: Releases) -> None:
    older = releases("0.20.1")
    judgement = judged(older, SCALE_PLANES)
    assert broken(judgement) == []
    assert VALUES.id in judgement.judged
    absent = judged(older, replace(SCALE_PLANES, origin="wired"))
    assert absent.skipped == "this release keeps a block's heads together"


@pytest.mark.subject
@pytest.mark.network
def test_spec_decode_attn_of_a_patched_tree_is_judged(newest: Elsewhere) -> None:
    case = replace(CASE, kernel="spec_decode_attn")
    assert judged(newest, case).skipped == "this tree has no spec_decode_attn"
    series = ROOT / "tests/patches/spec-decode-attn"
    with Elsewhere("0.33.0", patches=series) as patched:
        judgement = judged(patched, case)
        assert broken(judgement) == []
        assert VALUES.id in judgement.judged
        wrong = SourceEdit(
            modules=("vllm.v1.attention.ops.spec_decode_attn",),
            function="SpecDecodeAttention.run",
            old="softmax_scale=scale",
            new="softmax_scale=2 * scale",
        )
        assert broken(judged(patched, case, edits=(wrong,))) == [VALUES.id]
