"""What the commands of `python -m reproducers` do with saved faults.

Trees are resolved here, so that a person sees their fetching and their errors; the
cases run in child processes, one for each tree.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzz.trees import Tree, TreeError, resolve
from reports.events import Outcome
from reproducers.case_file import Refused, Saved
from reproducers.display import Display, shown_path
from reproducers.in_tree import replay_in_tree
from reproducers.ledger import Ledger, disagreements
from reproducers.replay import Replay, errored
from reproducers.script import json_text
from reproducers.store import entries, read, remove

STYLES: dict[Outcome, str] = {
    "REPRODUCED": "bold red",
    "FIXED": "green",
    "ERRORED": "bold magenta",
    "NOT_APPLICABLE": "yellow",
}
AFFECTED: dict[Outcome, str] = {
    "REPRODUCED": "affected",
    "FIXED": "fixed",
    "ERRORED": "error",
    "NOT_APPLICABLE": "not applicable",
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A tree to replay on, by name.

    Attributes:
        tree: None when it cannot be had.
        error: Why, else "".
    """

    spec: str
    patches: Path | None
    tree: Tree | None
    error: str = ""

    @property
    def label(self) -> str:
        """How people are told of it."""
        if self.tree is None:
            return self.spec
        named = self.tree.version in self.spec
        version = "" if named else f" (vLLM {self.tree.version})"
        patched = f" + {len(self.tree.patches)} patches" if self.tree.patches else ""
        return f"{self.spec}{version}{patched}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where saved faults lie and how people are told of their replay."""

    store: Path
    target_folders: tuple[Path, ...]
    display: Display

    def subject(self, spec: str, patches: Path | None) -> Subject:
        """Resolve a tree; a tree that cannot be had is a subject with an error."""
        try:
            tree = resolve(spec, patches=patches, progress=self.display.note)
        except TreeError as error:
            return Subject(spec=spec, patches=patches, tree=None, error=str(error))
        for note in tree.notes:
            self.display.note(note)
        return Subject(spec=spec, patches=patches, tree=tree)

    def run(self, subject: Subject, ids: tuple[str, ...]) -> Iterator[Replay]:
        """Replay faults on a tree, in a process of its own."""
        if subject.tree is None:
            yield from (errored(id_, subject.error) for id_ in ids)
            return
        what = f"replaying on {subject.label}"
        yield from replay_in_tree(
            subject.spec,
            patches=subject.patches,
            ids=ids,
            store=self.store,
            target_folders=self.target_folders,
            on_wait=lambda seconds: self.display.waiting(what, seconds),
        )

    def recorded(self, saved: Saved, patches: Path | None) -> Subject:
        """The tree on which a case was found."""
        found_on = saved.found_on
        if found_on.patches and patches is None:
            names = ", ".join(found_on.patches)
            return Subject(
                spec=found_on.spec,
                patches=None,
                tree=None,
                error=f"{saved.id} was found on vLLM {found_on.version} with the "
                f"patches {names}: give their folder with --vllm-patches DIR, or "
                "another tree with --vllm",
            )
        subject = self.subject(found_on.spec, patches)
        if subject.tree is not None and subject.tree.digest != found_on.digest:
            self.display.note(
                f"{saved.id} was found on another state of {found_on.spec} (tree "
                f"{found_on.digest[:16]}; this is {subject.tree.digest[:16]})"
            )
        return subject


def show(id_: str, *, store: Path, ledger: Ledger, display: Display) -> int:
    """Show all about one saved fault."""
    saved = read(store, id_)
    found_on = saved.found_on
    display.prose(f"{saved.id}: ", saved.message, style="bold")
    spec = "" if found_on.spec == found_on.version else f" ({found_on.spec})"
    patched = f" with {', '.join(found_on.patches)}" if found_on.patches else ""
    facts = [
        ("invariant", f"{saved.invariant}: {saved.statement}"),
        ("site", saved.site),
        ("exception", saved.exception or "none"),
        ("severity", saved.severity),
        ("origin", saved.origin),
        ("found", f"{saved.found}, seed {found_on.seed}"),
        ("on", f"vLLM {found_on.version}{spec}{patched}"),
        ("tree", found_on.digest),
        ("platform", found_on.platform),
        ("torch", f"{found_on.torch}, triton {found_on.triton}"),
        ("python", f"{found_on.python}, hypothesis {found_on.hypothesis}"),
        ("fix", saved.fix),
    ]
    entry = ledger.get(id_)
    if entry is not None:
        affected = ", ".join(entry.affected)
        fixed = f", fixed in {entry.fixed_in}" if entry.fixed_in else ", open"
        facts.append(("ledger", f"affected: {affected}{fixed}; {entry.summary}"))
        facts.append(("link", entry.link or "none"))
    facts += [(f"evidence: {k}", str(v)) for k, v in sorted(saved.evidence.items())]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        display.prose(f"  {name.ljust(width)}  ", value)
    display.line(f"case ({len(saved.size[1])} characters, {saved.case_digest}):")
    display.line(json_text(saved.case))
    display.line(f"replay:  python -m reproducers replay {saved.id}")
    script = shown_path(store / saved.id / "repro.py")
    display.line(f"script:  python {script}")
    return 0


def replayed(
    trial: Trial,
    ids: tuple[str, ...],
    *,
    spec: str | None,
    patches: Path | None,
    across: tuple[str, ...] | None,
    ledger: Ledger,
    as_json: bool,
) -> int:
    """Replay faults and show what they did; the worst exit status."""
    # An ID that is not in the store, or whose file is refused, is told at once.
    saved = [read(trial.store, id_) for id_ in ids]
    if across is not None:
        subjects = [(trial.subject(name.strip(), patches), ids) for name in across]
    elif spec is not None:
        subjects = [(trial.subject(spec, patches), ids)]
    else:
        subjects = _by_recorded_tree(trial, saved, patches)
    status = 0
    done: list[tuple[Subject, Replay]] = []
    for subject, its_ids in subjects:
        for each in trial.run(subject, its_ids):
            status = max(status, each.exit_status)
            done.append((subject, each))
            if as_json:
                trial.display.line(_json_line(subject, each))
            elif across is None:
                _show_replay(trial.display, subject, each)
    if across is not None and not as_json:
        for id_ in ids:
            mine = [(subject, each) for subject, each in done if each.id == id_]
            _show_across(trial.display, id_, mine, ledger)
    return status


def _by_recorded_tree(
    trial: Trial, saved: list[Saved], patches: Path | None
) -> list[tuple[Subject, tuple[str, ...]]]:
    groups: dict[tuple[str, tuple[str, ...]], list[Saved]] = {}
    for each in saved:
        key = each.found_on.spec, each.found_on.patches
        groups.setdefault(key, []).append(each)
    return [
        (trial.recorded(group[0], patches), tuple(each.id for each in group))
        for group in groups.values()
    ]


def _json_line(subject: Subject, each: Replay) -> str:
    line = {
        "id": each.id,
        "outcome": each.outcome,
        "message": each.message,
        "tree": subject.label,
    }
    return json.dumps(line)


def _show_replay(display: Display, subject: Subject, each: Replay) -> None:
    display.line(
        f"{each.outcome} {each.id} on {subject.label}", style=STYLES[each.outcome]
    )
    if each.outcome in ("REPRODUCED", "FIXED"):
        word = "fails" if each.outcome == "REPRODUCED" else "holds"
        display.prose("  broken arm: ", f"{word}: {each.message}")
    else:
        display.prose("  ", each.message)
    if each.fixed is not None:
        display.prose("  fixed arm:  ", f"{each.fixed.status}: {each.fixed.message}")
    for other in each.others:
        display.prose("  ANOTHER FAULT SHOWS: ", other, style="bold red")


def _show_across(
    display: Display, id_: str, done: list[tuple[Subject, Replay]], ledger: Ledger
) -> None:
    display.line(id_, style="bold")
    rows = []
    for subject, each in done:
        version = subject.tree.version if subject.tree is not None else ""
        said = ledger.expected(id_, version)
        message = "; ".join([each.message, *each.others])
        fix = each.fixed.status if each.fixed is not None else ""
        rows.append((subject.label, AFFECTED[each.outcome], said, fix, message))
    display.table(("vLLM", "replay", "ledger", "with the fix", "cause"), rows)


def prune(trial: Trial, *, ledger: Ledger, confirmed: bool | None) -> int:
    """Remove what the store need not keep; never what the ledger names.

    Args:
        trial: The store.
        ledger: Its faults stay.
        confirmed: Whether to remove; None asks.
    """
    display = trial.display
    everything = list(entries(trial.store))
    problems = disagreements(ledger, everything)
    for line in problems:
        display.error(line)
    free = [each for each in everything if ledger.get(each.id) is None]
    reasons = _removable(trial, free)
    for id_, reason in sorted(reasons.items()):
        display.line(f"{id_}: {reason}")
    if not reasons:
        display.line("nothing to remove")
    elif confirmed or (confirmed is None and _agreed(len(reasons))):
        for id_ in reasons:
            remove(trial.store, id_)
        display.line(f"removed {len(reasons)}")
    else:
        display.line("nothing was removed (--yes removes)")
    return 2 if problems else 0


def _removable(trial: Trial, free: list[Saved | Refused]) -> dict[str, str]:
    """Why entries can go, by ID; says of others why they stay."""
    reasons = {}
    for each in free:
        if isinstance(each, Refused) and each.future:
            trial.display.line(f"kept: {each.id}: {each.reason}")
        elif isinstance(each, Refused):
            reasons[each.id] = f"refused: {each.reason}"
    candidates = [each for each in free if isinstance(each, Saved)]
    for subject, ids in _by_recorded_tree(trial, candidates, None):
        for again in trial.run(subject, ids):
            if again.outcome == "FIXED":
                reasons[again.id] = f"does not reproduce on {subject.label} any more"
            elif again.outcome != "REPRODUCED":
                kept = f"kept: {again.id}: {again.outcome}: {again.message}"
                trial.display.line(kept)
    return reasons


def _agreed(count: int) -> bool:
    return input(f"remove these {count}? [y/N] ").strip().lower() in ("y", "yes")
