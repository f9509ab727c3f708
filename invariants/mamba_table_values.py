"""Cases and observations of the aligned Mamba block table, as plain values."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.memory.findings import Finding, Undecided
from invariants.model import Origin, Raised
from invariants.scheduling import columns_for

Mode = Literal["none", "align", "all"]
# Which side of `if block_table.is_cuda` runs; the same code in trees without one.
Branch = Literal["torch", "triton"]
# Generation of the worker whose tables a wired case fills.
Runner = Literal["v1", "v2"]

Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**17)]
BlockSize = Annotated[int, msgspec.Meta(ge=1, le=2**17)]
Drafts = Annotated[int, msgspec.Meta(ge=0, le=64)]
Small = Annotated[int, msgspec.Meta(ge=0, le=64)]
Step = Annotated[int, msgspec.Meta(ge=1, le=4)]
# Rows may lie so far apart that the last one starts beyond 2^31 elements.
Gap = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
NEAR = 64
Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class GivenTable:
    """Contract input: lengths, and how table and lengths lie in memory.

    Attributes:
        seq_lens: ``[requests]`` tokens, 0 for a padding row of a CUDA graph.
        first_row: Rows of the same allocation before the first one: a slice.
        row_gap: Elements between the end of a row and the next one.
        column_step: Elements from one column to the next.
        length_step: Elements from one length to the next.
    """

    seq_lens: Annotated[tuple[Tokens, ...], msgspec.Meta(max_length=64)]
    first_row: Small = 0
    row_gap: Gap = 0
    column_step: Step = 1
    length_step: Step = 1

    @property
    def far(self) -> bool:
        """Whether the table is too large to give every element a number."""
        return self.row_gap > NEAR


@dataclass(frozen=True, kw_only=True)
class Decode:
    """One decode step of a request: drafts scheduled, and how many are accepted."""

    drafts: Drafts
    accepted: Drafts

    def __post_init__(self) -> None:
        if self.accepted > self.drafts:
            raise ValueError(
                f"{self.accepted} tokens accepted of {self.drafts} drafts; "
                "no more can be accepted than were drafted"
            )


@dataclass(frozen=True, kw_only=True)
class ServedRequest:
    """A request of a wired case.

    Attributes:
        prompt_tokens: Prompts of one family start with the same tokens.
        family: Which tokens its prompt is made of.
        arrives: Step at which it waits to be scheduled.
        decodes: What it does once its prompt is computed; then it finishes.
    """

    prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**17)]
    family: Small = 0
    arrives: Small = 0
    decodes: Annotated[tuple[Decode, ...], msgspec.Meta(max_length=16)] = ()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Configuration of a wired case; widths and contents come from the tree's code.

    Attributes:
        runner: V2 has block tables for Mamba in later releases only.
        attention_block_sizes: ``[groups]`` of the KV-cache groups beside the Mamba
            group: the target's attention first, then a drafter's; () for a model
            that has none.
        kernel_block_size: Block size of the attention kernels, where it divides that
            of the group (releases up to 0.28 split such blocks in their tables).
        chunk_blocks: Prompt tokens computed per step, in Mamba blocks.
        pool_blocks: Blocks of the pool, the null block included.
        max_num_reqs: Rows of the worker's tables.
        padding_rows: Rows that a CUDA graph adds to each batch.
    """

    runner: Runner = "v1"
    attention_block_sizes: Annotated[tuple[BlockSize, ...], msgspec.Meta(max_length=3)]
    kernel_block_size: BlockSize = 16
    chunk_blocks: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    pool_blocks: Annotated[int, msgspec.Meta(ge=2, le=2**14)]
    max_num_reqs: Annotated[int, msgspec.Meta(ge=1, le=16)]
    padding_rows: Small = 0
    requests: Annotated[tuple[ServedRequest, ...], msgspec.Meta(max_length=16)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input of `mamba_get_block_table_tensor`, or a small engine that makes some.

    Attributes:
        block_size: Tokens per state block of the Mamba group; `max_model_len` in mode
            ``none`` of wired cases, as vLLM sets it without prefix caching
            (vllm/model_executor/models/config.py, 0.20.1).
    """

    format_version: Literal[1]
    origin: Origin
    mode: Mode
    branch: Branch
    max_model_len: Annotated[int, msgspec.Meta(ge=1, le=2**17)]
    block_size: BlockSize
    num_speculative_blocks: Annotated[int, msgspec.Meta(ge=0, le=64)]
    given: GivenTable | None = None
    engine: Engine | None = None

    def __post_init__(self) -> None:
        if (self.given is None) != (self.origin == "wired"):
            raise ValueError(f"a {self.origin} case gives a table where it must not")
        if (self.engine is None) != (self.origin == "contract"):
            raise ValueError(f"a {self.origin} case has an engine where it must not")
        longest = max((self.given.seq_lens if self.given else ()), default=0)
        if longest > self.max_model_len:
            raise ValueError(
                f"sequence length {longest} beyond max_model_len {self.max_model_len}"
            )
        for request in self.engine.requests if self.engine else ():
            if request.prompt_tokens >= self.max_model_len:
                raise ValueError(
                    f"a prompt of {request.prompt_tokens} tokens leaves no room for a "
                    f"token of output below max_model_len {self.max_model_len}"
                )

    @property
    def documented_columns(self) -> int:
        """Width that the docstring promises for the table of this mode."""
        if self.mode == "none":
            return self.window
        return columns_for(self.max_model_len, self.block_size)

    @property
    def window(self) -> int:
        """State blocks of a request in one step."""
        return 1 + self.num_speculative_blocks

    def first_column(self, seq_len: int) -> int:
        """Column of the block that holds the state after ``seq_len`` tokens."""
        return 0 if self.mode == "none" else max((seq_len - 1) // self.block_size, 0)


@dataclass(frozen=True, kw_only=True)
class WindowCall:
    """One call of `mamba_get_block_table_tensor`.

    Attributes:
        step: Scheduler step of a wired case; 0 for contract.
        table: ``[rows][columns]`` as given.
        seq_lens: ``[rows]`` as given.
        owned: ``[rows]`` wired: the blocks that the KV-cache manager holds for the
            row's request, column by column; None for a padding row.
        used: ``[rows]`` wired: leading entries of the window that the step reads or
            writes: one, and one per draft token.
        fresh: Blocks held in this step that a finished request had owned.
        moves: Rows before and now of requests that changed theirs in the step, new
            ones included.
        result: ``[rows][1 + num_speculative_blocks]``, or what was raised.
        result_shape: Shape of the result, () when it raised.
        result_dtype: Its dtype, "" when it raised.
        inputs_kept: Whether table and lengths are as before the call.
    """

    step: int
    table: Rows
    seq_lens: tuple[int, ...]
    owned: tuple[tuple[int, ...] | None, ...] = ()
    used: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    moves: tuple[tuple[int, int], ...] = ()
    result: Rows | Raised
    result_shape: tuple[int, ...]
    result_dtype: str
    inputs_kept: bool


@dataclass(frozen=True, kw_only=True)
class Hit:
    """What a request was admitted with from the prefix cache.

    Attributes:
        tokens: Tokens that need not be computed again.
        request_tokens: All tokens of the request.
        blocks: ``[columns]`` that the hit names in the Mamba group.
    """

    tokens: int
    request_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Served:
    """One request in one step.

    Attributes:
        prompt: Requests of the same prompt start with the same tokens.
        start: Tokens computed before the step.
        end: Tokens computed after it, rejected drafts left out.
        scheduled: Tokens of the step, drafts included.
        decodes: Whether the step is a decode, whose states the worker keeps at every
            block boundary that it passes.
        blocks: ``[columns]`` of the Mamba group that the request holds in the step.
        received: Blocks of any group that it was given for the step.
        hit: Where the request was admitted in this step.
    """

    prompt: int
    start: int
    end: int
    scheduled: int
    decodes: bool
    blocks: tuple[int, ...]
    received: tuple[int, ...]
    hit: Hit | None = None


@dataclass(frozen=True, kw_only=True)
class ServedStep:
    """One step of a wired case.

    Attributes:
        served: In the order in which they were given their blocks.
        copies: Blocks that the worker copies before the step, and where to.
    """

    number: int
    served: tuple[Served, ...]
    copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the tree did.

    Attributes:
        absent: Why this tree cannot run the case, such as a mode that it lacks.
        kernel: Whether the tree has a Triton kernel for the aligned window.
        unallocated: What the KV-cache manager raised instead of giving blocks.
        unfit: A row could not be written into the table that the runner had sized.
        unfit_columns: Blocks of that row, and the table's columns; () otherwise.
        steps: Wired: what each step did, for those that ended.
        findings: Of the memory checker, where it runs the kernels.
        undecided: What it could not judge; the case then passes nothing.
    """

    absent: str = ""
    kernel: bool = False
    unallocated: Raised | None = None
    unfit: Raised | None = None
    unfit_columns: tuple[int, ...] = ()
    calls: tuple[WindowCall, ...] = ()
    steps: tuple[ServedStep, ...] = ()
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
