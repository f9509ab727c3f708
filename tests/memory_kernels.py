"""Planted kernels for the memory checker: faulty ones, and what only looks faulty."""

# Kernels are read by Triton's compiler, which annotations would tell something; their
# upper-case parameters are compiled in.
# ruff: noqa: ANN001, ANN201, N803, PLR0917, SIM108
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def copy_row(out, rows, stride, N: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, N)
    found = tl.load(rows + row * stride + lanes)
    tl.store(out + row * N + lanes, found)


@triton.jit
def read_at(out, source, first, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(
        out + lanes,
        tl.load(
            source + first + lanes,
        ),
    )


@triton.jit
def read_page(out, pool, table, stride, N: tl.constexpr):
    column = tl.program_id(0)
    block = tl.load(table + column)
    lanes = tl.arange(0, N)
    found = tl.load(pool + block * stride + lanes)
    tl.store(out + column * N + lanes, found)


@triton.jit
def read_page_wide(out, pool, table, stride, N: tl.constexpr):
    column = tl.program_id(0)
    block = tl.load(table + column).to(tl.int64)
    lanes = tl.arange(0, N)
    found = tl.load(pool + block * stride + lanes)
    tl.store(out + column * N + lanes, found)


@triton.jit
def write_page(pool, table, stride, N: tl.constexpr):
    block = tl.load(table + tl.program_id(0)).to(tl.int64)
    tl.store(pool + block * stride + tl.arange(0, N), 1)


@triton.jit
def wrapped_mask(out, source, block, stride, limit, N: tl.constexpr):
    lanes = tl.arange(0, N)
    mask = block * stride + lanes < limit
    tl.store(out + lanes, tl.load(source + lanes, mask=mask, other=0))


@triton.jit
def store_number(out, value):
    tl.store(out + tl.program_id(0), value)


@triton.jit
def store_in_one_place(out, value, step):
    tl.store(out, value + tl.program_id(0) * step)


@triton.jit
def read_scratch(out, scratch, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(scratch + lanes))


@triton.jit
def fill(out, count, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, 7, mask=lanes < count)


@triton.jit
def through_table(table, count, N: tl.constexpr):
    lanes = tl.arange(0, N)
    to = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    tl.store(to + lanes, lanes, mask=lanes < count)


@triton.jit
def padded_window(out, table, pool, count, stride, N: tl.constexpr):
    lanes = tl.arange(0, N)
    block = tl.load(table + lanes)
    valid = (block >= 0) & (lanes < count)
    found = tl.load(pool + block * stride, mask=valid, other=0)
    tl.store(out + lanes, found)


@triton.jit
def floor_division(out, source, position, size, N: tl.constexpr):
    # Truncation toward zero: -1 // size is 0, and -1 - 0 * size is -1.
    lanes = tl.arange(0, N)
    block = (position - 1 + lanes) // size
    found = tl.load(source + block, mask=position + lanes >= 1, other=0)
    tl.store(out + lanes, found)


@triton.jit
def random_index(out, source, seed, size, N: tl.constexpr):
    lanes = tl.arange(0, N)
    bits = tl.randint(seed, lanes).to(tl.uint32, bitcast=True)
    tl.store(out + lanes, tl.load(source + bits % size.to(tl.uint32)))
    tl.store(out + lanes, (tl.rand(seed, lanes) * 4).to(tl.int32))


@triton.jit
def multiply_shift(out, source, key, SHIFT: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    bucket = ((key + lanes).to(tl.uint32) * 2654435769) >> SHIFT
    tl.store(out + lanes, tl.load(source + bucket))


@triton.jit
def wraps_and_comes_back(out, source, far, N: tl.constexpr):
    lanes = tl.arange(0, N)
    there = far + lanes
    tl.store(out + lanes, tl.load(source + (there - far)))


@triton.jit
def wraps_into_a_value(out, a, b):
    tl.store(out + tl.program_id(0), a * b)


@triton.jit
def of_bools(out, flags, N: tl.constexpr):
    lanes = tl.arange(0, N)
    flag = tl.load(flags + lanes)
    tl.store(out + lanes, flag.to(tl.int32), mask=flag)


@triton.jit(do_not_specialize=["start"], do_not_specialize_on_alignment=["stride"])
def unspecialized(out, source, start, stride: tl.int64, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(source + (start * stride + lanes)))


@triton.jit
def of_tuples(outs, source, starts, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(outs[0] + lanes, tl.load(source + starts[0] + lanes))
    tl.store(outs[1] + lanes, tl.load(source + starts[1] + lanes))


@triton.heuristics({"N": lambda args: max(triton.next_power_of_2(args["count"]), 1)})
@triton.jit
def with_heuristic(out, source, count, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(source + lanes, mask=lanes < count), lanes < count)


@triton.autotune(
    [triton.Config({"N": 4}), triton.Config({"N": 8}, num_warps=8)], key=["count"]
)
@triton.jit
def autotuned(out, source, count, N: tl.constexpr):
    lanes = tl.program_id(0) * N + tl.arange(0, N)
    mask = lanes < count
    tl.store(out + lanes, tl.load(source + lanes, mask=mask), mask=mask)


@triton.jit
def start_of(sequence, starts):
    if sequence < 0:
        return 0
    return tl.load(starts + sequence)


@triton.jit
def nested_calls(out, starts, source, count):
    total = 0
    for at in range(count):
        if at != 1:
            total += start_of(at - 1, starts)
    tl.store(out + tl.program_id(0), tl.load(source + total))


@triton.jit
def many_at_once(out, source, n, OTHER: tl.constexpr):
    """Every shape of statement that a source expression is taken from."""
    row = tl.program_id(0)
    found = tl.load(
        source
        + row * n  # the row
        + OTHER,
        mask=row < 10,
    )
    offset = row * n
    tl.store(out + offset, found)


@triton.jit
def overlapping_trips(out, N: tl.constexpr):
    # Each trip's first store is overwritten by the next trip's second one.
    for at in range(4):
        tl.store(out + at + 1, 10 + at)
        tl.store(out + at, 20 + at)


@triton.jit
def counted(out, counts, flags, N: tl.constexpr):
    lanes = tl.arange(0, N)
    active = tl.load(flags + lanes) > 0.5
    tl.atomic_add(counts + lanes, 1, mask=active)
    tl.store(out + tl.load(counts + lanes), 1)


@triton.jit
def tallied(counts, tokens, length, N: tl.constexpr):
    lanes = tl.arange(0, N)
    active = lanes < length
    # Lanes beyond the length read nothing, so that their addresses are not known.
    token = tl.load(tokens + lanes, mask=active)
    tl.atomic_add(counts + token, token + 1, mask=active)


@triton.jit
def shifted(out, source, amount, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(source + ((lanes.to(tl.int64) + 1) << amount)))


@triton.jit
def guarded_by_a_wrap(out, block, stride, limit):
    if block * stride < limit:
        tl.store(out, 1)


@triton.jit
def by_float(out, source, index, N: tl.constexpr):
    lanes = tl.arange(0, N)
    at = tl.load(index + lanes).to(tl.int32)
    tl.store(out + lanes, tl.load(source + at))


@triton.jit
def searched(out, starts, source, count, N: tl.constexpr):
    """Early return, a search, a condition with results, a reduction and a scan."""
    row = tl.program_id(0)
    if row >= count:
        return
    lanes = tl.arange(0, N)
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) <= row:
            low = middle + 1
        else:
            high = middle
    many = tl.load(starts + lanes, mask=lanes < count, other=0)
    first = tl.argmax(many, 0) + low
    total = tl.sum(tl.cumsum(many, 0), 0) % N
    tl.store(out + row * N + lanes, tl.load(source + first + total + lanes))


@triton.jit
def same_in_the_end(out):
    # Two programs store different numbers, and both leave the same one.
    tl.store(out, tl.program_id(0))
    tl.store(out, 7)


@triton.jit
def bytes_of_either(out, words, small, N: tl.constexpr):
    lanes = tl.arange(0, N)
    by_bytes = words.to(tl.pointer_type(tl.int8))
    chosen = tl.where(lanes % 2 == 0, by_bytes + lanes, small + lanes)
    tl.store(out + lanes, tl.load(chosen).to(tl.int32))


@triton.jit
def pointer_of_a_branch(out, words, small, N: tl.constexpr):
    lanes = tl.arange(0, N)
    if tl.program_id(0) == 0:
        start = words.to(tl.pointer_type(tl.int8)) + 1
    else:
        start = small
    found = tl.load(start + lanes)
    tl.store(out + tl.program_id(0) * N + lanes, found.to(tl.int32))


@triton.jit
def unsigned_loop(out, first, last):
    total = 0
    for _ in range(first.to(tl.uint32), last.to(tl.uint32)):
        total += 1
    tl.store(out, total)


@triton.jit
def store_floats(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), 1.0)


@triton.jit
def by_index(out, source, index, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(source + tl.load(index + lanes)))


@triton.jit
def single(out, source, scales):
    """Tensors of one lane taken for scalars, a float among them."""
    one = tl.arange(0, 1)
    at = tl.load(source + one).item()
    scale = tl.load(scales + one).item()
    tl.store(out + at, (scale * 2).to(tl.int32))
