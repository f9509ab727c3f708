"""Kernels whose results are known to the last bit, or to a bound, for value mode."""

# Kernels are read by Triton's compiler: constants are upper-case parameters, and an
# annotation would change a parameter's specialisation.
# ruff: noqa: ANN001, ANN201, N803, C901, PLR0912, PLR0917, SIM108
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def two_numbers(out, x_ptr, y_ptr, NAME: tl.constexpr, N: tl.constexpr):
    """One function of two numbers, in their own dtype."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    if NAME == "add":
        z = x + y
    elif NAME == "subtract":
        z = x - y
    elif NAME == "multiply":
        z = x * y
    elif NAME == "divide":
        z = (x / y).to(x.dtype)
    elif NAME == "negate":
        z = -x
    elif NAME == "maximum":
        z = tl.maximum(x, y)
    elif NAME == "minimum":
        z = tl.minimum(x, y)
    elif NAME == "maximum of all":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif NAME == "minimum of all":
        z = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif NAME == "magnitude":
        z = tl.abs(x)
    elif NAME == "greater":
        z = tl.where(x > y, x, y)
    elif NAME == "not less":
        z = tl.where(x < y, y, x)
    elif NAME == "differs":
        z = tl.where(x != y, 1.0, 0.0).to(x.dtype)
    else:
        tl.static_assert(NAME == "equals")
        z = tl.where(x == y, 1.0, 0.0).to(x.dtype)
    tl.store(out + at, z)


@triton.jit
def one_number(out, x_ptr, NAME: tl.constexpr, N: tl.constexpr):
    """One function of a number, in f32 or f64."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    if NAME == "exp":
        z = tl.exp(x)
    elif NAME == "exp2":
        z = tl.exp2(x)
    elif NAME == "log":
        z = tl.log(x)
    elif NAME == "log2":
        z = tl.log2(x)
    elif NAME == "sqrt":
        z = tl.sqrt(x)
    elif NAME == "rsqrt":
        z = tl.rsqrt(x)
    elif NAME == "floor":
        z = tl.floor(x)
    elif NAME == "ceil":
        z = tl.ceil(x)
    elif NAME == "sin":
        z = tl.sin(x)
    elif NAME == "cos":
        z = tl.cos(x)
    elif NAME == "erf":
        z = tl.erf(x)
    elif NAME == "sigmoid":
        z = tl.sigmoid(x)
    elif NAME == "tanh":
        z = libdevice.tanh(x)
    elif NAME == "log1p":
        z = libdevice.log1p(x)
    elif NAME == "rint":
        z = libdevice.rint(x)
    elif NAME == "round":
        z = libdevice.round(x)
    else:
        tl.static_assert(NAME == "trunc")
        z = libdevice.trunc(x)
    tl.store(out + at, z)


@triton.jit
def exact_numbers(out, x_ptr, y_ptr, c_ptr, N: tl.constexpr):
    """What f32 operations round once: a fused product, a division, a root, a bound."""
    at = tl.arange(0, N)
    x, y, c = tl.load(x_ptr + at), tl.load(y_ptr + at), tl.load(c_ptr + at)
    tl.store(out + at, tl.fma(x, y, c))
    tl.store(out + N + at, tl.div_rn(x, y))
    tl.store(out + 2 * N + at, tl.sqrt_rn(tl.abs(x)))
    tl.store(out + 3 * N + at, tl.clamp(x, -0.5, y * 0 + 0.5))
    tl.store(out + 4 * N + at, tl.where(libdevice.isnan(x), 1.0, 0.0))


@triton.jit
def convert(out, x_ptr, N: tl.constexpr):
    """From one dtype to another, as a store does it."""
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x_ptr + at).to(out.dtype.element_ty))


@triton.jit
def convert_toward_zero(out, x_ptr, N: tl.constexpr):
    """The same, cutting off what does not fit."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(out + at, x.to(out.dtype.element_ty, fp_downcast_rounding="rtz"))


@triton.jit
def convert_bits(out, x_ptr, N: tl.constexpr):
    """The same bits as another dtype."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(out + at, x.to(out.dtype.element_ty, bitcast=True))


@triton.jit
def product(
    out,
    x_ptr,
    y_ptr,
    M: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    HOW: tl.constexpr,
):
    """A matrix product of one tile, added to 1."""
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * K + k[None, :])
    y = tl.load(y_ptr + k[:, None] * N + n[None, :])
    kind: tl.constexpr = tl.int32 if x_ptr.dtype.element_ty == tl.int8 else tl.float32
    start = tl.full([M, N], 1, kind)
    z = tl.dot(x, y, start, input_precision=HOW, out_dtype=kind)
    tl.store(out + m[:, None] * N + n[None, :], z.to(out.dtype.element_ty))


@triton.jit
def decayed(a, x, b, y):
    """Combines two steps of h' = a h + x."""
    return a * b, x * b + y


@triton.jit
def folds(out, where, x_ptr, M: tl.constexpr, N: tl.constexpr):
    """Reductions and scans along both axes of a tile of f32."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    at = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out + m, tl.sum(x, 1))
    tl.store(out + M + m, tl.max(x, 1))
    tl.store(out + 2 * M + m, tl.min(x, 1))
    tl.store(where + m, tl.argmax(x, 1))
    tl.store(where + M + m, tl.argmin(x, 1))
    tl.store(out + 3 * M + n, tl.sum(x, 0))
    tl.store(out + 3 * M + N + at, tl.cumsum(x, 1))
    tl.store(out + 3 * M + N + M * N + at, tl.cumsum(x, 0, reverse=True))
    decay = tl.full([M, N], 0.5, tl.float32)
    _, h = tl.associative_scan((decay, x), 1, decayed)
    tl.store(out + 3 * M + N + 2 * M * N + at, h)
    tl.store(out + 3 * M + N + 3 * M * N, tl.sum(x))


@triton.jit
def rearranged(out, x_ptr, index_ptr, M: tl.constexpr, N: tl.constexpr):
    """Lanes in other places: transposed, split and joined, reshaped, gathered."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    at = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out + n[:, None] * M + m[None, :], tl.trans(x))
    first, second = tl.split(tl.reshape(x, [M, N // 2, 2]))
    back = tl.reshape(tl.join(second, first), [M, N])
    tl.store(out + M * N + at, back)
    tl.store(out + 2 * M * N + at, tl.gather(x, tl.load(index_ptr + at), 1))
    wide = tl.permute(tl.reshape(x, [M, 2, N // 2]), [1, 2, 0])
    tl.store(out + 3 * M * N + tl.arange(0, M * N), tl.reshape(wide, [M * N]))


@triton.jit
def add_to(out, old, x_ptr, N: tl.constexpr, SPREAD: tl.constexpr):
    """Atomic additions, several lanes and programs to one element."""
    lane = tl.arange(0, N)
    at = tl.program_id(0) * N + lane
    before = tl.atomic_add(out + lane % SPREAD, tl.load(x_ptr + at))
    tl.store(old + at, before)


@triton.jit
def own_pace(out, trips_ptr, x_ptr):
    """Loops of floats whose trips differ from program to program."""
    at = tl.program_id(0)
    x = tl.load(x_ptr + at)
    if x < 0:
        tl.store(out + at, -1.0)
        return
    total = 0.0
    for trip in range(tl.load(trips_ptr + at)):
        total = total * 0.5 + x * trip
    root = x
    while tl.abs(root * root - x) > 1e-3 * x:
        root = 0.5 * (root + x / root)
    if total > 10:
        total = total - root
    else:
        total = total + root
    tl.store(out + at, total)


@triton.jit
def in_place(x_ptr, steps):
    """Each trip reads what the last one stored."""
    at = x_ptr + tl.program_id(0)
    for _ in range(steps):
        tl.store(at, tl.load(at) * 1.5 + 1.0)


@triton.jit
def store_one(out, x_ptr):
    """All programs store to one element."""
    tl.store(out, tl.load(x_ptr + tl.program_id(0)))


@triton.jit
def masked(out, x_ptr, used, FILLED: tl.constexpr, N: tl.constexpr):
    """Lanes beyond `used` are not read; what they hold is stored all the same."""
    lane = tl.arange(0, N)
    if FILLED:
        x = tl.load(x_ptr + lane, mask=lane < used, other=2.0)
    else:
        x = tl.load(x_ptr + lane, mask=lane < used)
    tl.store(out + lane, x * 2)


@triton.jit
def branch_on_masked(out, x_ptr, used):
    """A branch on what a masked load leaves open."""
    x = tl.load(x_ptr, mask=used > 0)
    if x > 1.0:
        tl.store(out, 1.0)


@triton.jit
def number_of_masked(out, x_ptr, used, N: tl.constexpr):
    """An integer made of what a masked load leaves open."""
    lane = tl.arange(0, N)
    x = tl.load(x_ptr + lane, mask=lane < used)
    tl.store(out + lane, x.to(tl.int32))


@triton.jit
def assembly(out, x_ptr):
    """A function that only its text names."""
    x = tl.load(x_ptr)
    y = tl.inline_asm_elementwise(
        "ex2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out, y)


@triton.jit
def rare_function(out, x_ptr):
    """A device function that is not computed."""
    tl.store(out, libdevice.cyl_bessel_i0(tl.load(x_ptr)))


@triton.jit
def softmax(out, x_ptr, scale, ROWS: tl.constexpr, N: tl.constexpr):
    """Softmax of scaled rows; ROWS rows per program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at).to(tl.float32) * scale
    x = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(out + at, (x / tl.sum(x, 1)[:, None]).to(out.dtype.element_ty))
