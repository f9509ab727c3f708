"""What the next step's inputs must be: plain lists, written from the contracts.

A form's outputs are lists of numbers by name; UNTOUCHED stands where a kernel must
leave what was there, None where nothing is promised.
"""

from collections.abc import Mapping

from invariants.draft_inputs_case import PADDING_TOKEN, PARALLEL, VOCABULARY, Case
from invariants.verify_case import INT32_LIMIT

# What outputs hold before a launch; no token, slot or length is this large.
UNTOUCHED = INT32_LIMIT - 1
PADDING_SLOT = -1
# Elements behind an output's last one that are looked at as well.
MARGIN = 3

Numbers = list[int | None]


def expected(case: Case) -> Mapping[str, Numbers]:
    """The outputs of a case's form."""
    match case.form:
        case "next_tokens":
            return _next_tokens(case)
        case "step":
            return _step(case)
        case "expand":
            return _expand(case)
        case "inputs":
            return _inputs(case)
        case "update":
            return _update(case)


def _next_tokens(case: Case) -> Mapping[str, Numbers]:
    """The last token that was sampled, or the backup of a request that samples none."""
    chosen: Numbers = []
    places: Numbers = []
    for at, each in enumerate(case.requests):
        sampled = case.sampled_tokens(at)
        chosen.append(sampled[-1] if sampled else backup(case, at))
        places.append(case.starts[at + 1] - 1 - each.rejected)
    return {
        "next_token_ids": chosen,
        "valid_sampled_tokens_count": [each.sampled for each in case.requests],
        "token_indices_to_sample": places,
        "num_rejected_tokens": [each.rejected for each in case.requests],
    }


def backup(case: Case, request: int) -> int:
    """The token of a request that samples nothing: the last one that is known."""
    return case.token(request, case.requests[request].prompt - 1)


def _step(case: Case) -> Mapping[str, Numbers]:
    """One token further; a request at its longest goes on at 0, without a slot."""
    positions: Numbers = []
    slots: Numbers = []
    lengths: Numbers = []
    for at, each in enumerate(case.requests):
        position = each.length
        clipped = position >= case.longest
        positions.append(0 if clipped else position)
        slots.append(PADDING_SLOT if clipped else _slot(case, at, position))
        lengths.append(1 if clipped else each.length + 1)
    padding = case.padded - len(case.requests)
    return {
        "positions": [*positions, *_untouched()],
        "slot_mapping": [*slots, *[PADDING_SLOT] * padding, *_untouched()],
        "seq_lens": [*lengths, *_untouched()],
    }


def _slot(case: Case, request: int, position: int) -> int:
    column, offset = divmod(position, case.block_size)
    return case.blocks[request][column] * case.block_size + offset


def _untouched() -> Numbers:
    return [UNTOUCHED] * MARGIN


def _expand(case: Case) -> Mapping[str, Numbers]:
    """Each request's tokens, its next one, slots of the same pass, rejected ones."""
    out: dict[str, Numbers] = {
        name: []
        for name in (
            *("input_ids", "positions", "is_rejected", "is_masked"),
            *("token_indices_to_sample", "hidden_state_mapping", "slot_mapping"),
        )
    }
    for at, each in enumerate(case.requests):
        first = len(out["input_ids"])
        kept = [
            case.token(at, each.context + j) for j in range(each.query - each.rejected)
        ]
        kept = kept[1:] if case.shifted else kept
        fresh = (*case.sampled_tokens(at)[-1:], backup(case, at))[0]
        new = [fresh, *[PARALLEL] * (case.extra - 1)]
        size = len(kept) + len(new)
        positions = [each.context + j for j in range(size)]
        out["input_ids"] += [*kept, *new, *[PADDING_TOKEN] * each.rejected]
        out["positions"] += [*positions, *[0] * each.rejected]
        out["is_rejected"] += [*[0] * size, *[1] * each.rejected]
        masked = [0] * (len(kept) + 1) + [1] * (case.extra - 1)
        out["is_masked"] += [*masked, *[0] * each.rejected]
        out["token_indices_to_sample"] += [
            first + len(kept) + j for j in range(case.extra)
        ]
        out["hidden_state_mapping"] += [first + j for j in range(each.query)]
        out["slot_mapping"] += [
            PADDING_SLOT if position >= case.longest else _slot(case, at, position)
            for position in positions
        ] + [PADDING_SLOT] * each.rejected
    for name in ("input_ids", "positions", "is_rejected", "is_masked"):
        out[name] += [0] * MARGIN if name.startswith("is_") else _untouched()
    if not case.shifted:
        del out["hidden_state_mapping"]
    out["query_start_loc"] = [
        start + at * case.net_extra for at, start in enumerate(case.starts)
    ]
    out["seq_lens"] = [each.length + case.net_extra for each in case.requests]
    return out


def _inputs(case: Case) -> Mapping[str, Numbers]:
    """Tokens of prompts, the last sampled token, drafts; positions; what is sampled."""
    ids: Numbers = []
    positions: Numbers = []
    logits: Numbers = []
    expanded: Numbers = []
    local: Numbers = []
    following: Numbers = []
    for at, each in enumerate(case.requests):
        own: Numbers = [UNTOUCHED] * each.query
        if each.context < each.prompt:
            own = [case.token(at, each.context + j) for j in range(each.query)]
        if each.length > each.prompt:
            drafts = case.draft_tokens(at)
            own[each.query - each.drafts :] = drafts
            if not each.tail:
                own[0] = last_sampled(case, at)
        ids += own
        positions += [each.context + j for j in range(each.query)]
        count = each.drafts + 1
        logits += [case.starts[at + 1] - count + j for j in range(count)]
        expanded += [case.mapping[at]] * count
        local += range(count)
        following.append(case.token(at, each.length) if each.partial else None)
    padding = case.states - len(case.requests)
    return {
        "input_ids": [*ids, *_untouched()],
        "positions": [*positions, *_untouched()],
        "seq_lens": [*[each.length for each in case.requests], *[0] * padding],
        "logits_indices": logits,
        "expanded_idx_mapping": expanded,
        "expanded_local_pos": local,
        "next_prefill_tokens": following,
    }


def last_sampled(case: Case, request: int) -> int:
    """The token that a decoding request begins its step with."""
    each = case.requests[request]
    return case.token(request, each.length - each.drafts - 1)


def known_tokens(case: Case, request: int) -> int:
    """Tokens of a request before the step's are added, as V2 counts them."""
    each = case.requests[request]
    return max(each.prompt, each.length - each.drafts)


def shown_tokens(case: Case, request: int) -> int:
    """How many places are compared from a request's first new token on."""
    return min(case.steps + 2, case.longest - known_tokens(case, request))


def _update(case: Case) -> Mapping[str, Numbers]:
    """What was sampled is appended and counted; computed tokens are those accepted."""
    sampled: Numbers = [each.sampled for each in case.requests]
    lasts: Numbers = []
    appended: Numbers = []
    counts = [[0] * VOCABULARY for _ in case.requests]
    for at in range(len(case.requests)):
        tokens = case.sampled_tokens(at)
        lasts.append(tokens[-1] if tokens else UNTOUCHED)
        appended += [*tokens, *[UNTOUCHED] * (shown_tokens(case, at) - len(tokens))]
        for token in tokens:
            counts[at][token] += 1
    return {
        "num_sampled": sampled,
        "num_rejected": [
            0 if each.partial else each.rejected for each in case.requests
        ],
        "num_computed_tokens": [each.length - each.rejected for each in case.requests],
        "last_sampled_tokens": lasts,
        "total_len": [
            known_tokens(case, at) + each.sampled
            for at, each in enumerate(case.requests)
        ],
        "all_token_ids": appended,
        "output_bin_counts": [count for row in counts for count in row],
    }
