"""Speed of the memory checker: `python -m benchmarks.memory [--json]`.

Launches the split-KV control kernel at the size of the public report (24 query heads,
4 KV heads, head size 256, blocks of 880 tokens, 8 query tokens, the request at the top
of the pool): in address mode, in value mode, and in Triton's interpreter beside them,
each in a process of its own. Then shows what the time goes into, and how it grows.
"""

import argparse
import cProfile
import json
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BLOCK, HEADS, KV_HEADS, HEAD_SIZE, QUERY = 880, 24, 4, 256, 8
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Size:
    """One launch: requests, keys of each, blocks of the pool."""

    tokens: int
    blocks: int = 2600
    requests: int = 1
    query: int = QUERY


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one process measured.

    Attributes:
        first_ms: Lowering the kernels included.
        median_ms: Of the launches after it.
        resident_mib: Peak resident memory above what importing took.
    """

    first_ms: float
    median_ms: float
    resident_mib: float


@contextmanager
def launcher(size: Size) -> Iterator[Callable[[], None]]:
    """A call that launches the kernels once."""
    import torch

    from fuzz.targets._splitkv_control import splitkv_control_attention
    from invariants.memory.pools import virtual_pool

    columns = -(-size.tokens // BLOCK)
    shape = (size.blocks, BLOCK, KV_HEADS, HEAD_SIZE)
    elements = size.blocks * BLOCK * KV_HEADS * HEAD_SIZE
    owned = range(size.blocks - columns * size.requests, size.blocks)
    query = torch.zeros(
        size.requests * size.query, HEADS, HEAD_SIZE, dtype=torch.bfloat16
    )
    with virtual_pool(4 * elements) as pool:
        numbers = pool.view(torch.bfloat16)
        key, value = numbers[:elements].view(shape), numbers[elements:].view(shape)
        table = torch.tensor(owned, dtype=torch.int32).view(size.requests, columns)
        starts = torch.arange(0, len(query) + 1, size.query, dtype=torch.int32)
        used = torch.full((size.requests,), size.tokens, dtype=torch.int32)

        def launch() -> None:
            splitkv_control_attention(
                q=query,
                key_cache=key,
                value_cache=value,
                out=torch.empty_like(query),
                cu_seqlens_q=starts,
                seqused_k=used,
                block_table=table,
                scale=HEAD_SIZE**-0.5,
                max_query_len=size.query,
                window=0,
                key_scale_cache=None,
                value_scale_cache=None,
                key_dequant=1.0,
                value_dequant=1.0,
                wide_ids=True,
            )

        yield launch


def resident_bytes(field: str) -> int:
    """A line of /proc/self/status such as `VmHWM`, in bytes."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def measured(launch: Callable[[], None], *, repeats: int) -> Figures:
    """Time launches; the first one apart."""
    before = resident_bytes("VmRSS")
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        launch()
        times.append((time.perf_counter() - began) * 1e3)
    return Figures(
        first_ms=round(times[0], 1),
        median_ms=round(statistics.median(times[1:] or times), 2),
        resident_mib=round(max(resident_bytes("VmHWM") - before, 0) / MIB, 1),
    )


def run_arm(arm: str, size: Size, *, repeats: int, profile: bool) -> Figures:
    """Measure in this process, which must be fresh."""
    from fuzz import boot

    boot.prepare(platform="cpu", triton="interpret" if arm == "interpret" else "jit")
    if arm == "interpret":
        from fuzz.targets._interpreter import corrected_interpreter

        with launcher(size) as launch, corrected_interpreter():
            return measured(launch, repeats=0)
    from invariants.memory.launches import checked_launches

    with launcher(size) as launch:

        def checked() -> None:
            with checked_launches(values=arm == "values") as log:
                launch()
            if log.findings or log.undecided:
                raise SystemExit(f"not clean: {log.findings or log.undecided}")

        figures = measured(checked, repeats=repeats)
        if profile:
            profiler = cProfile.Profile()
            profiler.runcall(checked)
            stats = pstats.Stats(profiler, stream=sys.stderr)
            stats.sort_stats("tottime").print_stats(15)
    return figures


def in_child(arm: str, size: Size, *, repeats: int, profile: bool = False) -> Figures:
    """Measure in a process of its own."""
    given = {"arm": arm, "repeats": repeats, "profile": profile, "size": asdict(size)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--child", json.dumps(given)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def tell(row: dict[str, Any], *, as_json: bool) -> None:
    """Print one line."""
    text = json.dumps(row) if as_json else "  ".join(f"{k} {v}" for k, v in row.items())
    print(text, flush=True)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000, 20_000])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-interpreter", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        asked = json.loads(given.child)
        size = Size(**asked.pop("size"))
        figures = run_arm(asked.pop("arm"), size, **asked)
        print(json.dumps(asdict(figures)))
        return
    repeats = given.repeats
    for tokens in given.tokens:
        size = Size(tokens=tokens)
        address = in_child("address", size, repeats=repeats, profile=given.profile)
        row = {"tokens": tokens, **asdict(address)}
        if not given.no_interpreter:
            values = in_child("values", size, repeats=min(repeats, 5))
            interpreter = in_child("interpret", size, repeats=0)
            row["values_ms"] = values.median_ms
            row["interpreter_ms"] = interpreter.first_ms
            row["times_faster"] = round(interpreter.first_ms / address.median_ms)
            row["values_times_faster"] = round(
                interpreter.first_ms / values.median_ms, 1
            )
        tell(row, as_json=given.json)
    grown = {
        "a hundred times the pool": Size(tokens=2_000, blocks=260_000),
        "eight times the programs": Size(tokens=2_000, requests=8),
        "four times the query lanes": Size(tokens=2_000, query=32),
        "ten times the loop trips": Size(tokens=20_000),
    }
    base = in_child("address", Size(tokens=2_000), repeats=repeats)
    for what, size in grown.items():
        figures = in_child("address", size, repeats=repeats)
        tell(
            {
                "with": what,
                **asdict(figures),
                "times_slower": round(figures.median_ms / base.median_ms, 2),
            },
            as_json=given.json,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
