"""Faults planted in staged writes, their kernel and the states that own them."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

BUFFERS = ("vllm.v1.worker.gpu.buffer_utils",)
STATES = ("vllm.v1.worker.gpu.states",)
KERNEL = "_apply_write_kernel"


def _mutant(
    name: str,
    function: str,
    *plants: tuple[str, str],
    invariants: tuple[str, ...],
    origin: Origin = "contract",
    cases: int = 60,
    modules: tuple[str, ...] = BUFFERS,
) -> Mutant:
    """Of each release its own text: the first that fits is planted."""
    return Mutant(
        name=name,
        origin=origin,
        edits=tuple(
            SourceEdit(modules=modules, function=function, old=old, new=new)
            for old, new in plants
        ),
        invariants=invariants,
        cases=cases,
        size=500,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "rows in 32 bits",
        KERNEL,
        (".to(tl.int64)", ""),
        invariants=("STAGED-WRITE-EXACT",),
        origin="wired",
    ),
    _mutant(
        "writes begin at the row's first column",
        KERNEL,
        (" * row_stride + start_idx", " * row_stride"),
        (" * output_stride + start_idx", " * output_stride"),
        invariants=("STAGED-WRITE-VALUES", "STAGED-WRITE-STORES"),
    ),
    _mutant(
        "a batch's first content for each of its writes",
        KERNEL,
        ("write_contents_ptr + cu_start + block", "write_contents_ptr + block"),
        invariants=("STAGED-WRITE-VALUES", "STAGED-WRITE-OWNED"),
        origin="wired",
    ),
    _mutant(
        "applied writes are not forgotten",
        "StagedWriteTensor.clear_staged_writes",
        ("self._staged_write_indices.clear()", "pass"),
        invariants=(
            "STAGED-WRITE-OWNED",
            "STAGED-WRITE-STORES",
            "STAGED-WRITE-RAISES",
            "STAGED-WRITE-VALUES",
        ),
    ),
    _mutant(
        "a longest write that is one element short",
        "StagedWriteTensor.stage_write",
        ("cu_len - prev_len)", "cu_len - prev_len - 1)"),
        ("append(len(self._staged_write_contents))", "append(len(x))"),
        invariants=("STAGED-WRITE-VALUES", "STAGED-WRITE-OWNED"),
        cases=300,
    ),
    _mutant(
        "a request that comes anew keeps its computed tokens",
        "RequestState.add_request",
        ("self.num_computed_tokens.stage_write_elem(req_idx, num_computed_tokens)", ""),
        invariants=("STAGED-WRITE-VALUES",),
        origin="wired",
        modules=STATES,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (BUFFERS, KERNEL),
    (BUFFERS, "StagedWriteTensor.stage_write"),
    (BUFFERS, "StagedWriteTensor.stage_write_elem"),
    (BUFFERS, "StagedWriteTensor.apply_write"),
    (BUFFERS, "StagedWriteTensor.clear_staged_writes"),
    (BUFFERS, "FusedStagedWriter.apply"),
    (BUFFERS, "UvaBufferPool.copy_to_uva"),
    (STATES, "RequestState.add_request"),
    (STATES, "RequestState.remove_request"),
    (STATES, "RequestState.apply_staged_writes"),
)
