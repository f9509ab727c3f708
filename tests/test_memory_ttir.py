"""The reader of TTIR: forms of three Triton releases, and traps of the text."""

import pytest

from invariants.memory.kernel import Kernel
from invariants.memory.slicing import operations_of
from invariants.memory.ttir import Frame, Module, Operation, TtirError, Type, parse
from invariants.memory.ttir import parse_type as read_type
from tests.memory_texts import TRITON_3_6, TRITON_3_7, TRITON_3_9

TEXTS = {"3.6": TRITON_3_6, "3.7": TRITON_3_7, "3.9": TRITON_3_9}


def named(module: Module, name: str) -> list[Operation]:
    return [
        operation
        for function in module.functions.values()
        for operation in operations_of(function.blocks)
        if operation.name == name
    ]


def in_kernel(body: str) -> Module:
    """A module with these lines in its kernel."""
    return parse(
        "module {\n  tt.func public @k(%p: !tt.ptr<i32>, %n: i32) {\n"
        f"{body}\n    tt.return\n  }}\n}}\n"
    )


@pytest.mark.parametrize("release", TEXTS)
def test_the_kernel_and_the_function_that_it_calls(release: str) -> None:
    module = parse(TEXTS[release])
    assert module.kernel.name == "forms"
    first, second, count = module.kernel.parameter_types
    assert first == second == Type((), "f32", pointer=True)
    assert count == Type((), "i32")
    (call,) = named(module, "tt.call")
    called = module.functions[call.text.split("(")[0].lstrip("@")]
    assert len(called.blocks) == 3
    loop = named(module, "scf.for")[0]
    # Its counter, then what the call is given.
    assert call.operands == (loop.regions[0][0].arguments[0],)


@pytest.mark.parametrize("release", TEXTS)
def test_a_cache_policy_is_no_operand(release: str) -> None:
    (load,) = named(parse(TEXTS[release]), "tt.load")
    assert len(load.operands) == 1
    assert load.types == (Type((), "f32", pointer=True),)


@pytest.mark.parametrize("release", TEXTS)
def test_members_of_a_tuple_are_told_apart(release: str) -> None:
    module = parse(TEXTS[release])
    first, second = [each.operands[0] for each in named(module, "tt.addptr")]
    assert (first, second) == module.kernel.parameters[:2]


@pytest.mark.parametrize("release", TEXTS)
def test_barriers_and_negations_are_read(release: str) -> None:
    module = parse(TEXTS[release])
    (barrier,) = [*named(module, "gpu.barrier"), *named(module, "ttg.barrier")]
    assert barrier.operands == ()
    (negative,) = [*named(module, "arith.subf"), *named(module, "arith.negf")]
    (store,) = named(module, "tt.store")
    assert store.operands[1] == negative.results[0]


@pytest.mark.parametrize("release", TEXTS)
def test_places_are_in_the_source(release: str) -> None:
    module = parse(TEXTS[release])
    (load,) = named(module, "tt.load")
    assert [(each.file, each.line) for each in module.frames(load.location)] == [
        ("forms.py", 12)
    ]


@pytest.mark.parametrize("release", TEXTS)
def test_floats_are_no_part_of_the_slice(release: str) -> None:
    module = parse(TEXTS[release])
    runs = Kernel(name="forms", module=module).slice
    negatives = [*named(module, "arith.subf"), *named(module, "arith.negf")]
    assert not any(runs.runs(each) for each in negatives)
    assert all(runs.runs(each) for each in named(module, "arith.muli"))


def test_names_are_those_of_their_own_region() -> None:
    module = in_kernel(
        """    %c = arith.cmpi slt, %n, %n : i32
    scf.if %c {
      %x = arith.addi %n, %n : i32
      tt.store %p, %x : !tt.ptr<i32>
    } else {
      %x = arith.muli %n, %n : i32
      tt.store %p, %x : !tt.ptr<i32>
    }"""
    )
    sums, products = named(module, "arith.addi"), named(module, "arith.muli")
    first, second = named(module, "tt.store")
    assert first.operands[1] == sums[0].results[0]
    assert second.operands[1] == products[0].results[0]


def test_strange_names_and_numbers() -> None:
    module = in_kernel(
        """    %c-1_i32 = arith.constant -1 : i32
    %true = arith.constant true
    %cst = arith.constant dense<[1, -2]> : tensor<2xi32>
    %inf = arith.constant 0xFF800000 : f32
    %x.1$ = arith.addi %c-1_i32, %n : i32
    %7:2 = "tt.reduce"(%cst, %cst) <{axis = 0 : i32}> ({
    ^bb0(%a: i32, %b: i32, %c: i32, %d: i32):
      tt.reduce.return %a, %d : i32, i32
    }) : (tensor<2xi32>, tensor<2xi32>) -> (i32, i32)
    %y = arith.subi %7#1, %x.1$ : i32"""
    )
    (reduced,) = named(module, "tt.reduce")
    assert len(reduced.operands) == len(reduced.results) == 2
    assert [each.shape for each in reduced.types] == [(2,), (2,), (), ()]
    (last,) = named(module, "arith.subi")
    (total,) = named(module, "arith.addi")
    assert last.operands == (reduced.results[1], total.results[0])


def test_strings_are_no_comments_and_no_operands() -> None:
    module = in_kernel(
        '    %t = tt.elementwise_inline_asm "mov %p, 1; // wait" '
        '{constraints = "=r", packed_element = 1 : i32, pure = false} -> i32'
    )
    (assembly,) = named(module, "tt.elementwise_inline_asm")
    assert assembly.operands == ()


def test_a_block_may_come_before_what_leads_to_it() -> None:
    module = in_kernel(
        """    %c = arith.cmpi eq, %n, %n : i32
    cf.cond_br %c, ^bb1, ^bb2(%n : i32)
  ^bb1:  // 2 preds: ^bb0, ^bb2
    tt.return
  ^bb2(%m: i32):  // pred: ^bb0
    tt.store %p, %m : !tt.ptr<i32>
    cf.br ^bb1"""
    )
    (branch,) = named(module, "cf.cond_br")
    assert branch.successors == (("^bb1", ()), ("^bb2", (module.kernel.parameters[1],)))
    (store,) = named(module, "tt.store")
    assert store.operands[1] == module.kernel.blocks[2].arguments[0]


def test_a_call_site_has_its_frames_innermost_first() -> None:
    module = parse(
        "module {\n  tt.func public @k(%n: i32) {\n"
        "    %x = arith.muli %n, %n : i32 loc(callsite(#loc1 at #loc2))\n"
        "    tt.return\n  }\n}\n"
        '#loc1 = loc("standard.py":3:5)\n#loc2 = loc("x"(#loc3))\n'
        '#loc3 = loc("kernel.py":7:9)\n'
    )
    (product,) = named(module, "arith.muli")
    assert module.frames(product.location) == (
        Frame("standard.py", 3, 5),
        Frame("kernel.py", 7, 9),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i1", Type((), "i1")),
        ("tensor<4x8xi64>", Type((4, 8), "i64")),
        ("tensor<16x!tt.ptr<bf16>>", Type((16,), "bf16", pointer=True)),
        ("!tt.ptr<i32, 1>", Type((), "i32", pointer=True)),
        ("tensor<2xf32, #blocked>", Type((2,), "f32")),
    ],
)
def test_types(text: str, expected: Type) -> None:
    assert read_type(text) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "no tt.func"),
        ("module {\n  tt.func @k() {\n    ???\n", "not an operation: ???"),
        ("module {\n  tt.func @k() {\n    tt.return", "the text ends within a region"),
        (
            "module {\n  tt.func @k() {\n    tt.use %x : i32\n  }\n}",
            "%x is used and not defined",
        ),
        (
            "module {\n  tt.func @k() {\n    new.loop {\n    }\n  }\n}",
            "new.loop has regions and is not known",
        ),
    ],
)
def test_what_is_not_understood_is_shown(text: str, shown: str) -> None:
    with pytest.raises(TtirError) as told:
        parse(text)
    assert shown in str(told.value)
