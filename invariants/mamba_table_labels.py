"""What a case of the aligned Mamba block table exercised, as coverage labels."""

from itertools import pairwise

from invariants.mamba_table_values import Case, Engine, Observation, WindowCall
from invariants.scheduling import NULL_BLOCK

SPECULATIVE = "speculative window"
BEYOND = "window needs columns beyond docstring width"
CUDA = "triton branch"
FAR = "row offset beyond 2^31 elements"
_ELEMENTS_MAX = 2**31


def labels_of(case: Case, observation: Observation) -> frozenset[str]:
    """Labels of what one case exercised."""
    labels = {f"mode {case.mode}", f"{case.branch} branch"}
    given, engine = case.given, case.engine
    if observation.kernel and case.branch == "triton" and case.mode == "align":
        labels.add("triton kernel")
    if case.num_speculative_blocks and case.mode == "align":
        labels.add(SPECULATIVE)
    if given is not None:
        if given.row_gap or given.column_step > 1:
            labels.add("non-contiguous rows")
        if given.first_row:
            labels.add("row slice")
        if not given.seq_lens:
            labels.add("no rows")
        if (len(given.seq_lens) - 1) * given.row_gap >= _ELEMENTS_MAX:
            labels.add(FAR)
    if engine is not None:
        labels |= _engine_labels(case, engine)
    for call in observation.calls:
        labels |= _call_labels(case, call)
    for step in observation.steps:
        hits = [len(each.hit.blocks) for each in step.served if each.hit]
        labels |= {"prefix hit"} if any(hits) else set()
        labels |= {"longer prefix hit"} if max(hits, default=0) > 1 else set()
    return frozenset(labels)


def _engine_labels(case: Case, engine: Engine) -> set[str]:
    labels = {f"{engine.runner} runner"}
    if any(size != case.block_size for size in engine.attention_block_sizes):
        labels.add("two groups of different block size")
    if not engine.attention_block_sizes:
        labels.add("no attention group")
    plans = [request.decodes for request in engine.requests]
    if any(step.accepted < step.drafts for plan in plans for step in plan):
        labels.add("rejected drafts")
    if any(
        later.drafts < earlier.drafts
        for plan in plans
        for earlier, later in pairwise(plan)
    ):
        labels.add("fewer drafts than before")
    return labels


def _call_labels(case: Case, call: WindowCall) -> set[str]:
    labels: set[str] = set()
    if 0 in call.seq_lens:
        labels.add("zero-length row")
    # A scheduled sequence ends one token below max_model_len (`Scheduler.schedule`).
    if case.max_model_len - (case.origin == "wired") in call.seq_lens:
        labels.add("seq_len at max")
    old_rows, new_rows = {old for old, _ in call.moves}, {new for _, new in call.moves}
    if call.moves:
        labels.add("moved row")
    if old_rows & new_rows:
        labels.add("exchanged rows")
    if case.mode != "align":
        return labels
    for row, seq_len in enumerate(call.seq_lens):
        first = case.first_column(seq_len)
        if first == len(call.table[row]) - 1:
            labels.add("window in last column")
        if first + case.window > case.documented_columns:
            labels.add(BEYOND)
        owned = call.owned[row] if call.owned else None
        if owned and set(owned) & set(call.fresh):
            labels.add("reused block")
        others = {
            block
            for other, blocks in enumerate(call.owned)
            if other != row and blocks
            for block in blocks
        }
        if owned and (set(owned) - {NULL_BLOCK}) & others:
            labels.add("shared block")
    return labels
