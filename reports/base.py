"""What head breaks anew: its findings replayed on another tree, the base of a change.

A finding that the base shows too is no reason to stop a merge; one that could not be
replayed there leaves the gate without an answer.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from reports.decide import Decision, Reason, decided
from reports.events import Outcome
from reports.text import cut, printable

REPLAY_TIMEOUT_S = 1_800


class BaseReplay(msgspec.Struct, frozen=True, kw_only=True):
    """How a saved fault fared on the base: a line of `reproducers replay --json`."""

    id: str
    outcome: Outcome
    message: str


# An id, a tree, and the folders of users' own targets.
Replayer = Callable[[str, str, Sequence[str]], BaseReplay]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
# FIXED with 1: this fault is gone, and another one shows on its case.
_EXITS: dict[Outcome, tuple[int, ...]] = {
    "REPRODUCED": (1,),
    "FIXED": (0, 1),
    "ERRORED": (2,),
    "NOT_APPLICABLE": (0,),
}


def against_base(
    decision: Decision,
    base: str,
    *,
    target_folders: Sequence[str],
    unsaved: frozenset[str],
    replay: Replayer,
) -> Decision:
    """The decision of a gate that fails only on what head breaks anew.

    Args:
        decision: Of head by itself.
        base: The tree to compare with, as ``--vllm`` names trees.
        target_folders: Of users' own targets, which a replay of theirs needs.
        unsaved: Ids of findings that have no reproducer to replay.
        replay: Runs a saved fault on a tree; `replay_in_process` does.
    """
    reasons: list[Reason] = []
    notes = list(decision.notes)
    for reason in decision.reasons:
        if reason.kind == "promote":
            notes.append(f"head repairs a known fault: {reason.text}")
        elif reason.kind == "untold":
            reasons.append(reason)
        elif reason.id in unsaved:
            text = f"{reason.id} was not saved, so it cannot be replayed on {base}"
            reasons.append(Reason(kind="untold", id=reason.id, text=text))
        else:
            replayed = replay(reason.id, base, target_folders)
            if replayed.outcome == "REPRODUCED":
                notes.append(f"already in base {base}: {reason.text}")
            elif replayed.outcome == "ERRORED":
                text = (
                    f"{reason.id} could not be replayed on base {base}: "
                    f"{replayed.message}"
                )
                reasons.append(Reason(kind="untold", id=reason.id, text=text))
            else:
                text = f"{reason.text}; not in base {base} ({replayed.outcome})"
                reasons.append(Reason(kind="finding", id=reason.id, text=text))
    return decided(tuple(reasons), tuple(notes))


def replay_in_process(id_: str, tree: str, target_folders: Sequence[str]) -> BaseReplay:
    """Run `python -m reproducers replay` in another process and read its answer.

    An answer that is missing, unreadable, of another fault, or at odds with the exit
    code counts as ERRORED: it proves nothing.
    """
    if not _ID.fullmatch(id_):
        return _errored(id_, "is no id of a saved fault: letters, digits and -")
    command = [sys.executable, "-m", "reproducers", "replay", id_]
    command += ["--vllm", tree, "--json"]
    for folder in target_folders:
        command += ["--targets", folder]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=REPLAY_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return _errored(id_, f"no answer within {REPLAY_TIMEOUT_S} s")
    except OSError as error:
        return _errored(id_, f"could not be started: {error}")
    for line in ended.stdout.splitlines():
        try:
            answer = msgspec.json.decode(line, type=BaseReplay)
        except msgspec.DecodeError:
            continue
        if answer.id == id_:
            if ended.returncode not in _EXITS[answer.outcome]:
                return _errored(
                    id_, f"{answer.outcome}, yet its exit code is {ended.returncode}"
                )
            return answer
    errors = ended.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
    last = cut(printable(errors[-1]), 300)
    return _errored(id_, f"no answer; exit code {ended.returncode}: {last}")


def _errored(id_: str, message: str) -> BaseReplay:
    return BaseReplay(id=id_, outcome="ERRORED", message=message)
