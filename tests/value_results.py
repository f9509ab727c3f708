"""Products, folds, control and what is told in value mode; see `value_checks`."""

import numpy as np
import torch

from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from tests import value_kernels as kernels
from tests.value_checks import Result, Tensor, clean, launched, random, same

# --- products, folds, places ----------------------------------------------------------


def product(dtype: str, how: str = "ieee") -> float:
    """The worst error of a matrix product, as a multiple of what its sums allow."""
    kind = getattr(torch, dtype)
    m, k, n = 16, 64, 32
    if kind == torch.int8:
        generator = torch.Generator().manual_seed(2)
        x, y = (
            torch.randint(-128, 128, shape, generator=generator).to(kind)
            for shape in ((m, k), (k, n))
        )
        out = torch.empty(m, n, dtype=torch.int32)
    else:
        x, y = random(m, k, seed=1).to(kind), random(k, n, seed=2).to(kind)
        out = torch.empty(m, n)
    clean(kernels.product, (1,), out, x, y, M=m, K=k, N=n, HOW=how)
    if how == "tf32":
        x, y = (
            torch.from_numpy((each.numpy().view(np.int32) >> 13 << 13).view(np.float32))
            for each in (x, y)
        )
    want = x.double() @ y.double() + 1
    if kind == torch.int8:
        return float((out.double() - want).abs().max())
    terms = x.double().abs() @ y.double().abs() + 1
    allowed = (k + 1) * torch.finfo(torch.float32).eps / 2 * terms
    return float(((out.double() - want).abs() / allowed).max())


def folds() -> dict[str, float]:
    """The worst errors of reductions and scans, as multiples of what is allowed."""
    m, n = 8, 32
    x = random(m, n, seed=4)
    x[2, 5] = x[2, 9] = 9.0
    out = torch.empty(3 * m + n + 3 * m * n + 1)
    where = torch.full((2, m), -1, dtype=torch.int32)
    clean(kernels.folds, (1,), out, where, x, M=m, N=n)
    wide = x.double()
    parts = torch.split(out.double(), [m, m, m, n, m * n, m * n, m * n, 1])
    step = torch.finfo(torch.float32).eps / 2
    hidden = torch.zeros(m, dtype=torch.float64)
    states = []
    for column in wide.T:
        hidden = hidden * 0.5 + column
        states.append(hidden)

    def worst(got: Tensor, want: Tensor, count: int) -> float:
        allowed = count * step * float(wide.abs().sum())
        return float((got.flatten() - want.flatten()).abs().max()) / allowed

    return {
        "sum of rows": worst(parts[0], wide.sum(1), n),
        "largest": float((parts[1] - wide.amax(1)).abs().max()),
        "smallest": float((parts[2] - wide.amin(1)).abs().max()),
        # Of equal numbers the first counts.
        "where largest": float(
            (where[0] != torch.from_numpy(x.numpy().argmax(1))).sum()
        ),
        "where smallest": float(
            (where[1] != torch.from_numpy(x.numpy().argmin(1))).sum()
        ),
        "sum of columns": worst(parts[3], wide.sum(0), m),
        "running sum": worst(parts[4], torch.from_numpy(wide.numpy().cumsum(1)), n),
        "backward sum": worst(
            parts[5], torch.from_numpy(wide.numpy()[::-1].cumsum(0)[::-1].copy()), m
        ),
        "recurrence": worst(parts[6], torch.stack(states, dim=1), 2 * n),
        "sum of all": worst(parts[7], wide.sum()[None], m * n),
    }


def rearranged(dtype: str) -> int:
    """How many lanes are not where they belong."""
    m, n = 4, 8
    x = random(m, n, seed=5).to(getattr(torch, dtype))
    index = torch.arange(m * n).view(m, n).mul(5).remainder(n).to(torch.int32)
    out = torch.empty(4 * m * n, dtype=x.dtype)
    clean(kernels.rearranged, (1,), out, x, index, M=m, N=n)
    held = x.double().numpy()
    swapped = held.reshape(m, n // 2, 2)[:, :, ::-1].reshape(m, n)
    want = np.concatenate(
        [
            held.T.ravel(),
            swapped.ravel(),
            np.take_along_axis(held, index.long().numpy(), 1).ravel(),
            held.reshape(m, 2, n // 2).transpose(1, 2, 0).ravel(),
        ]
    )
    return same(out, torch.from_numpy(want))


def added(dtype: str, spread: int) -> int:
    """How many sums of atomics, or numbers found before them, are wrong."""
    kind = getattr(torch, dtype)
    programs, lanes = 3, 16
    x = random(programs * lanes, seed=6).to(kind)
    out, old = torch.ones(spread, dtype=kind), torch.zeros(programs * lanes, dtype=kind)
    clean(kernels.add_to, (programs,), out, old, x, N=lanes, SPREAD=spread)
    sums = torch.ones(spread, dtype=kind)
    before = []
    for at, number in enumerate(x):
        place = at % lanes % spread
        before.append(sums[place].clone())
        sums[place] += number
    return same(out, sums) + same(old, torch.stack(before))


# --- control --------------------------------------------------------------------------


def own_pace() -> float:
    """The worst relative error of loops whose trips differ between programs."""
    x = torch.tensor([4.0, -1.0, 2.0, 100.0, 0.25])
    trips = torch.tensor([5, 3, 0, 1, 9], dtype=torch.int32)
    out = torch.zeros(5)
    clean(kernels.own_pace, (5,), out, trips, x)
    want = []
    for number, count in zip(x.tolist(), trips.tolist(), strict=True):
        total = 0.0
        for trip in range(count):
            total = total * 0.5 + number * trip
        root = number
        while number > 0 and abs(root * root - number) > 1e-3 * number:
            root = 0.5 * (root + number / root)
        want.append(
            -1.0 if number < 0 else total - root if total > 10 else total + root
        )
    ratio = (out.double() - torch.tensor(want).double()).abs() / torch.tensor(
        want
    ).abs()
    return float(ratio.max())


def in_place() -> list[float]:
    return clean(kernels.in_place, (2,), torch.tensor([1.0, 2.0]), 3).tolist()


def many_programs() -> tuple[float, int]:
    """Softmax over more programs than run together: worst error, and accesses."""
    programs, rows, n = 600, 16, 256
    x = random(programs * rows, n, seed=8).to(torch.bfloat16)
    out = torch.empty(programs * rows, n)
    result = launched(kernels.softmax, (programs,), out, x, 0.5, ROWS=rows, N=n)
    want = (x.double() * 0.5).softmax(-1)
    allowed = want * (n + 8) * torch.finfo(torch.float32).eps / 2
    return float(((out.double() - want).abs() / allowed).max()), result.accesses


# --- what is told ---------------------------------------------------------------------


def stored(numbers: tuple[float, ...], dtype: str = "float32") -> Result:
    x = torch.tensor(numbers, dtype=getattr(torch, dtype))
    return launched(kernels.store_one, (len(x),), torch.zeros(1, dtype=x.dtype), x)


def masked(*, filled: bool, used: int) -> Result:
    return launched(
        kernels.masked, (1,), torch.zeros(8), torch.ones(8), used, FILLED=filled, N=8
    )


def scratch(*, stored_first: bool) -> Result:
    """Two kernels by way of scratch, the first of which may store too little."""
    memory = Memory()
    held = torch.zeros(8)
    memory.scratch(held)
    used = 8 if stored_first else 7
    with checked_launches(memory, values=True) as log:
        kernels.convert[(1,)](held, torch.ones(used), N=used) if stored_first else (
            kernels.in_place[(0,)](held, 1)
        )
        out = torch.zeros(8)
        kernels.masked[(1,)](out, held, 8, FILLED=True, N=8)
    return Result(out.tolist(), log.findings, log.undecided)


def branch_on_masked(used: int) -> Result:
    return launched(kernels.branch_on_masked, (1,), torch.zeros(1), torch.ones(1), used)


def number_of_masked(used: int) -> Result:
    out = torch.zeros(8, dtype=torch.int32)
    return launched(kernels.number_of_masked, (1,), out, torch.ones(8), used, N=8)


def assembly() -> Result:
    return launched(kernels.assembly, (1,), torch.zeros(1), torch.ones(1))


def rare_function() -> Result:
    return launched(kernels.rare_function, (1,), torch.zeros(1), torch.ones(1))


def left_open_by_address_mode() -> Result:
    """Value mode after address mode, which stores integers of floats as not known."""
    held = torch.zeros(8, dtype=torch.int32)
    memory = Memory()
    with checked_launches(memory):
        kernels.number_of_masked[(1,)](held, torch.ones(8), 8, N=8)
    bits = held.view(torch.float32)
    out = torch.zeros(8)
    return launched(kernels.masked, (1,), out, bits, 8, memory=memory, FILLED=True, N=8)
