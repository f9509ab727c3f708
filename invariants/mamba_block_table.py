"""The aligned Mamba block table: which state blocks a step's kernels get to see.

A recurrent state takes one block per `block_size` tokens, and one more per draft token.
Before each step vLLM cuts the window of these out of the request's row; the reference
does the same over plain lists.
"""

from dataclasses import dataclass, replace

from invariants.kernel_laws import KernelLaws, undecided_reason
from invariants.mamba_prefix_hits import wrong_hits
from invariants.mamba_table_deeds import FILLING_SITE, blamed
from invariants.mamba_table_labels import BEYOND, CUDA, FAR, SPECULATIVE, labels_of
from invariants.mamba_table_values import Case, Observation, WindowCall
from invariants.model import Invariant, Judgement, Raised, Violation
from invariants.scheduling import NULL_BLOCK

TARGET = "mamba_block_table"
WINDOW_SITE = "mamba_get_block_table_tensor"
KERNEL_SITE = "_mamba_align_block_table_kernel"
SIZING_SITE = "GPUModelRunner.may_reinitialize_input_batch"
HIT_SITE = "MambaManager.find_longest_cache_hit"

EXACT = Invariant(
    id="GDN-ALIGN-EXACT",
    target=TARGET,
    statement="No number that has wrapped in 32 bits reaches an address or the mask of "
    "an access.",
    severity="crash",
    wired=(CUDA,),
    contract=(CUDA, FAR),
)
ACCESS = Invariant(
    id="GDN-ALIGN-ACCESS",
    target=TARGET,
    statement="Kernels that cut out windows, or fill and gather rows, stay in the "
    "tensors that they are given.",
    severity="crash",
    wired=(CUDA,),
    contract=(CUDA,),
)
STORES = Invariant(
    id="GDN-ALIGN-STORES",
    target=TARGET,
    statement="They store to no input, and no two programs store different numbers to "
    "one element.",
    severity="corruption",
    wired=(CUDA,),
    contract=(CUDA,),
)
_ACCESSES = KernelLaws(exact=EXACT, owned=ACCESS, stores=STORES)

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        id="GDN-ALIGN-BOUNDS",
        target=TARGET,
        statement="Aligned windows read nothing outside the request's own row: the "
        "call returns, and what lies beyond the row is the null block.",
        severity="crash",
        wired=(SPECULATIVE, BEYOND, "shared block"),
        contract=(SPECULATIVE, "window in last column", "seq_len at max", BEYOND),
    ),
    Invariant(
        id="GDN-ALIGN-WINDOW",
        target=TARGET,
        statement="An aligned window is the row's entries from the column of the last "
        "token on, one and one per speculative block.",
        severity="corruption",
        wired=(SPECULATIVE, "two groups of different block size"),
        contract=(SPECULATIVE, "non-contiguous rows", "row slice"),
    ),
    Invariant(
        id="GDN-ALIGN-ROWS",
        target=TARGET,
        statement="The result is int32 with one row per request, padding rows "
        "included, whose window starts at column 0.",
        severity="corruption",
        wired=("zero-length row",),
        contract=("zero-length row",),
    ),
    Invariant(
        id="GDN-ALIGN-PURE",
        target=TARGET,
        statement="Block table and sequence lengths are left as they were.",
        severity="corruption",
        wired=(SPECULATIVE,),
        contract=("non-contiguous rows",),
    ),
    Invariant(
        id="GDN-TABLE-IDENTITY",
        target=TARGET,
        statement="Without aligned windows (modes none and all) the result is the "
        "table as it was given, int32 entry by entry.",
        severity="corruption",
        wired=("mode none",),
        contract=("mode none",),
    ),
    Invariant(
        id="GDN-TABLE-FITS",
        target=TARGET,
        statement="Every row that the KV-cache manager hands out fits the table that "
        "the model runner sized.",
        severity="crash",
        wired=(SPECULATIVE, BEYOND, "seq_len at max"),
    ),
    Invariant(
        id="GDN-BLOCKS-GIVEN",
        target=TARGET,
        statement="The KV-cache manager gives a scheduled request its blocks, or says "
        "that the pool has too few; it never raises.",
        severity="crash",
        wired=(SPECULATIVE, "rejected drafts", "fewer drafts than before"),
    ),
    Invariant(
        id="GDN-ALIGN-OWNED",
        target=TARGET,
        statement="The window holds the blocks that the KV-cache manager keeps for the "
        "request at these columns; those that the step uses are the request's, each "
        "for one state.",
        severity="corruption",
        wired=(
            *(SPECULATIVE, "reused block", "shared block", "rejected drafts"),
            *("moved row", "exchanged rows"),
        ),
    ),
    Invariant(
        id="GDN-HIT-STATE",
        target=TARGET,
        statement="The block that a prefix-cache hit names holds the state after just "
        "the hit's tokens of that prompt; a token is left to compute.",
        severity="corruption",
        wired=("prefix hit", "longer prefix hit"),
    ),
    EXACT,
    ACCESS,
    STORES,
)


def judge(case: Case, observation: Observation) -> Judgement:
    """Judge each call against the reference, and the tables' width (wired)."""
    judged: set[str] = set()
    violations: list[Violation] = []
    skipped = observation.absent or undecided_reason(
        observation.findings, observation.undecided
    )
    if skipped:
        return Judgement(
            judged=frozenset(), violations=(), labels=frozenset(), skipped=skipped
        )
    if case.branch == "triton" or observation.findings:
        judged |= {EXACT.id, ACCESS.id, STORES.id}
        violations += _ACCESSES.violations(observation.findings, origin=case.origin)
    if case.origin == "wired":
        judged |= {"GDN-TABLE-FITS", "GDN-BLOCKS-GIVEN"}
        violations += [*_unallocated(observation), *_unfit(observation)]
        if any(served.hit for step in observation.steps for served in step.served):
            judged.add("GDN-HIT-STATE")
            violations += _wrong_hits(case, observation)
    misheld: list[tuple[int, Violation]] = []
    for number, call in enumerate(observation.calls):
        if case.origin == "wired" and (short := _short_table(call)):
            # What a window shows of a table that lacks columns is no news.
            violations.append(short)
            continue
        if case.mode == "align":
            found = _judged_window(case, call, kernel=observation.kernel)
        else:
            found = _judged_identity(case, call)
        judged |= found.judged
        violations += found.violations
        if case.origin == "wired":
            judged.add("GDN-ALIGN-OWNED")
            misheld += [(number, broken) for broken in _not_owned(case, call)]
    if misheld:
        places = [(call, int(str(each.evidence["row"]))) for call, each in misheld]
        site = blamed(case, observation.calls, places)
        violations += [replace(each, site=site) for _, each in misheld]
    return Judgement(
        judged=frozenset(judged),
        violations=_first_of_each(violations),
        labels=labels_of(case, observation),
    )


def reference_window(
    row: tuple[int, ...], *, first_column: int, window: int
) -> tuple[int, ...]:
    """The window of one row; the null block where the row has no such column.

    Columns beyond the row stand for positions beyond `max_model_len`, whose states
    nobody owns. Block 0 belongs to no request either, and state kernels know it as
    padding (``NULL_BLOCK_ID`` in vllm/v1/attention/backends/utils.py, 0.20.1), so that
    it is the one id that can neither read nor overwrite somebody's state.
    """
    columns = range(first_column, first_column + window)
    return tuple(row[c] if c < len(row) else NULL_BLOCK for c in columns)


@dataclass(frozen=True, kw_only=True)
class _Found:
    judged: frozenset[str]
    violations: tuple[Violation, ...]


def _judged_window(case: Case, call: WindowCall, *, kernel: bool) -> _Found:
    site = KERNEL_SITE if kernel and case.branch == "triton" else WINDOW_SITE
    if isinstance(call.result, Raised):
        row = _widest(case, call)
        broken = _violation(
            case,
            "GDN-ALIGN-BOUNDS",
            site=site,
            message=f"{_where(case, call, row)}: {call.result.type}: "
            f"{call.result.message.splitlines()[0] if call.result.message else ''}",
            evidence={"row": row, "columns": _columns(call)},
            exception=call.result.type,
        )
        return _Found(judged=frozenset({"GDN-ALIGN-BOUNDS"}), violations=(broken,))
    violations = [*_wrong_rows(case, call, site), *_mutated(case, call, site)]
    if not any(broken.invariant == "GDN-ALIGN-ROWS" for broken in violations):
        for row, got in enumerate(call.result):
            violations += _wrong_entries(case, call, site, row=row, got=got)
    return _Found(
        judged=frozenset(
            {
                "GDN-ALIGN-BOUNDS",
                "GDN-ALIGN-WINDOW",
                "GDN-ALIGN-ROWS",
                "GDN-ALIGN-PURE",
            }
        ),
        violations=tuple(violations),
    )


def _wrong_rows(case: Case, call: WindowCall, site: str) -> list[Violation]:
    expected = (len(call.seq_lens), case.window)
    if call.result_shape == expected and call.result_dtype == "int32":
        return []
    return [
        _violation(
            case,
            "GDN-ALIGN-ROWS",
            site=site,
            message=f"result is {call.result_dtype} of shape {call.result_shape}; "
            f"{len(call.seq_lens)} requests with {case.num_speculative_blocks} "
            f"speculative blocks need int32 of shape {expected}",
            evidence={"shape": list(call.result_shape), "dtype": call.result_dtype},
        )
    ]


def _wrong_entries(
    case: Case, call: WindowCall, site: str, *, row: int, got: tuple[int, ...]
) -> list[Violation]:
    """A window's entries: foreign ones break BOUNDS, misplaced ones WINDOW or ROWS."""
    given = call.table[row]
    first = case.first_column(call.seq_lens[row])
    expected = reference_window(given, first_column=first, window=case.window)
    wrong = [entry for entry in range(case.window) if got[entry] != expected[entry]]
    if not wrong:
        return []
    own = {NULL_BLOCK, *given}
    foreign = [e for e in wrong if first + e >= len(given) or got[e] not in own]
    invariant = "GDN-ALIGN-BOUNDS" if foreign else "GDN-ALIGN-WINDOW"
    if not foreign and call.seq_lens[row] == 0:
        invariant = "GDN-ALIGN-ROWS"
    return [
        _violation(
            case,
            invariant,
            site=site,
            message=f"{_where(case, call, row)}: got {list(got)}, "
            f"expected {list(expected)}",
            evidence={
                "row": row,
                "columns": len(given),
                "got": list(got),
                "expected": list(expected),
            },
        )
    ]


def _mutated(case: Case, call: WindowCall, site: str) -> list[Violation]:
    if call.inputs_kept:
        return []
    return [
        _violation(
            case,
            "GDN-ALIGN-PURE",
            site=site,
            message="the call changed its block table or its sequence lengths",
            evidence={"step": call.step},
        )
    ]


def _judged_identity(case: Case, call: WindowCall) -> _Found:
    judged = frozenset({"GDN-TABLE-IDENTITY"})
    if call.result == call.table and call.result_dtype == "int32":
        return _Found(judged=judged, violations=())
    raised = call.result if isinstance(call.result, Raised) else None
    broken = _violation(
        case,
        "GDN-TABLE-IDENTITY",
        site=WINDOW_SITE,
        message=f"mode {case.mode}: {raised.type}: {raised.message}"
        if raised
        else f"mode {case.mode}: the {call.result_dtype} result of shape "
        f"{call.result_shape} is not the int32 table that was given",
        evidence={"columns": _columns(call)},
        exception=raised.type if raised else "",
    )
    return _Found(judged=judged, violations=(broken,))


def _not_owned(case: Case, call: WindowCall) -> list[Violation]:
    """Rows whose windows are not the blocks which the KV-cache manager holds.

    The windows are those of the reference: what the call itself makes of a right row
    breaks other laws. The manager may have nulled a column that the worker's row still
    shows, for it moves speculative blocks to the end of its list while rows are only
    appended to. That block may be used as long as it is the request's own, for one
    state at a time. Their site is settled when all calls are known.
    """
    violations = []
    for row, (owned, filled) in enumerate(zip(call.owned, call.table, strict=True)):
        if owned is None:
            continue
        first = case.first_column(call.seq_lens[row]) if case.mode == "align" else 0
        window = case.window if case.mode == "align" else len(filled)
        got = reference_window(filled, first_column=first, window=window)
        held = owned[first : first + len(got)]
        other = any(
            kept not in (block, NULL_BLOCK)
            for block, kept in zip(got, held, strict=False)
        )
        used = got[: call.used[row]]
        own = set(used) <= set(owned) - {NULL_BLOCK} and len(set(used)) == len(used)
        if not other and (own or case.mode == "all"):
            continue
        violations.append(
            _violation(
                case,
                "GDN-ALIGN-OWNED",
                site=FILLING_SITE,
                message=f"step {call.step}, {_where(case, call, row)}: it holds "
                f"{list(got)} and uses {len(used)}, the KV-cache manager holds "
                f"{list(held)} there",
                evidence={"row": row, "got": list(got), "held": list(held)},
            )
        )
    return violations


def _unallocated(observation: Observation) -> list[Violation]:
    raised = observation.unallocated
    if raised is None:
        return []
    return [
        Violation(
            invariant="GDN-BLOCKS-GIVEN",
            target=TARGET,
            origin="wired",
            site=raised.site,
            message=f"after {len(observation.calls)} steps the KV-cache manager "
            f"raised {raised.type}: {raised.message}",
            evidence={"steps": len(observation.calls)},
            exception=raised.type,
        )
    ]


def _unfit(observation: Observation) -> list[Violation]:
    if observation.unfit is None:
        return []
    blocks, columns = observation.unfit_columns
    raised = f"{observation.unfit.type}: {observation.unfit.message}"
    return [_too_narrow(blocks=blocks, columns=columns, shown=raised)]


def _wrong_hits(case: Case, observation: Observation) -> list[Violation]:
    return [
        _violation(
            case,
            "GDN-HIT-STATE",
            site=HIT_SITE,
            message=f"step {wrong.step}: a hit of {wrong.hit.tokens} tokens, blocks of "
            f"{case.block_size}, {wrong.text}",
            evidence={"tokens": wrong.hit.tokens, "blocks": list(wrong.hit.blocks)},
        )
        for wrong in wrong_hits(case, observation.steps)
    ]


def _short_table(call: WindowCall) -> Violation | None:
    """A table that lacks columns: numpy drops one id beyond a row's end silently."""
    columns = _columns(call)
    blocks = max((len(owned) for owned in call.owned if owned), default=0)
    if blocks <= columns:
        return None
    return _too_narrow(
        blocks=blocks, columns=columns, shown="the last one is lost without a word"
    )


def _too_narrow(*, blocks: int, columns: int, shown: str) -> Violation:
    # One fault, whichever way it shows: no exception type in its key.
    return Violation(
        invariant="GDN-TABLE-FITS",
        target=TARGET,
        origin="wired",
        site=SIZING_SITE,
        message=f"a row of {blocks} blocks does not fit the table of {columns} columns "
        f"that the model runner sized: {shown}",
        evidence={"blocks": blocks, "columns": columns},
    )


def _violation(
    case: Case,
    invariant: str,
    *,
    site: str,
    message: str,
    evidence: dict[str, int | str | list[int]],
    exception: str = "",
) -> Violation:
    return Violation(
        invariant=invariant,
        target=TARGET,
        origin=case.origin,
        site=site,
        message=message,
        evidence=evidence,
        exception=exception,
    )


def _first_of_each(violations: list[Violation]) -> tuple[Violation, ...]:
    """One violation per fault: rows and steps repeat the same one."""
    return tuple({violation.key: violation for violation in violations[::-1]}.values())


def _columns(call: WindowCall) -> int:
    return len(call.table[0]) if call.table else 0


def _widest(case: Case, call: WindowCall) -> int:
    """The row whose window starts last, the first one to leave the table."""
    starts = [case.first_column(length) for length in call.seq_lens]
    return starts.index(max(starts)) if starts else 0


def _where(case: Case, call: WindowCall, row: int) -> str:
    seq_len = call.seq_lens[row] if call.seq_lens else 0
    first = case.first_column(seq_len)
    return (
        f"row {row} (seq_len {seq_len}, block size {case.block_size}) wants columns "
        f"{first}..{first + case.window - 1} of a table of {_columns(call)} columns"
    )
