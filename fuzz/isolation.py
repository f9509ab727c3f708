"""Runs cases that may kill their process in another one, and says how it ended.

A zygote (`fuzz._zygote`, started by exec) holds the imported tree and forks a child
that runs case after case. When a child dies, the case in flight is known; whether it
or an earlier case of that child is to blame is settled in fresh children.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from fuzz._protocol import Ready, Request, Setup, wire_edits
from fuzz._watch import START_TIMEOUT_S, IsolationError, Zygote, ZygoteDied
from fuzz.edits import Edit
from fuzz.runtime import Runtime
from fuzz.trees import Tree
from invariants.model import Death

__all__ = ["Culprit", "Isolation", "IsolationError", "Outcome"]

# A child takes so many cases, which bounds the search for a culprit.
CASES_PER_CHILD = 256
# Restarts of a zygote that was killed, over an isolation's life.
RESTARTS_MAX = 3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case, and what had run before it in the same process.

    Attributes:
        request: The case as it was sent.
        result: The observation's JSON, or the end of the process.
        earlier: Requests that the process had answered before; empty where the
            process was fresh, so that nothing but the case can be to blame.
    """

    request: Request
    result: str | Death
    earlier: tuple[Request, ...]


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Cases that passed, and did harm that only a later case of the process showed.

    Attributes:
        damaging: The least that was found to do it, nearly always one case; all that
            had run where it did not happen again.
        victim: The case that showed the harm, and does not show it in a fresh process.
        symptom: What was seen: a death's cause, or what the caller looked for.
        reproduced: Whether the same cases did it again in another process.
    """

    damaging: tuple[Request, ...]
    victim: Request
    symptom: str
    reproduced: bool


class Isolation:
    """Runs cases of one tree under one runtime in child processes; one per worker.

    The zygote is started with the first case. Not to be shared between threads.

    Args:
        tree: The tree to activate.
        runtime: Platform and Triton mode of the process; what time and memory a case
            may take is what its target declares.
        target_folders: Folders of the user's own targets.
    """

    def __init__(
        self, *, tree: Tree, runtime: Runtime, target_folders: tuple[Path, ...] = ()
    ) -> None:
        self._setup = Setup(
            control_fd=-1,
            parent_pid=0,
            tree=tree,
            platform=runtime.platform,
            triton=runtime.triton,
            target_folders=tuple(str(folder.resolve()) for folder in target_folders),
        )
        self._zygote: Zygote | None = None
        self._restarts = 0
        self._culprits: list[Culprit] = []
        self._startup_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def startup_s(self) -> float:
        """Seconds spent so far on starting zygotes and importing tree and targets."""
        return self._startup_s

    def run(
        self,
        target: str,
        case: str,
        *,
        edits: tuple[Edit, ...] = (),
        fresh: bool = False,
    ) -> str | Death:
        """Run a case; give its observation's JSON, or how its process ended.

        A death is always that of a process in which nothing but the case ran.

        Args:
            target: Name of the target.
            case: The case's JSON.
            edits: Changes to the tree for this case.
            fresh: Run it in a process in which nothing else ran.

        Raises:
            IsolationError: When the target raised, an edit does not fit, the tree or
                the target cannot be imported, or the zygote was killed too often.
        """
        return self.outcome(target, case, edits=edits, fresh=fresh).result

    def run_many(
        self, target: str, cases: Sequence[str], *, edits: tuple[Edit, ...] = ()
    ) -> list[str | Death]:
        """Run cases one after the other, in as few processes as they leave alive."""
        return [self.run(target, case, edits=edits) for case in cases]

    def outcome(
        self,
        target: str,
        case: str,
        *,
        edits: tuple[Edit, ...] = (),
        fresh: bool = False,
    ) -> Outcome:
        """As `run`, with what had run before in the same process."""
        request = Request(target=target, case=case, edits=wire_edits(edits))
        result, earlier = self._answer(request, fresh=fresh)
        if not isinstance(result, Death):
            return Outcome(request=request, result=result, earlier=earlier)
        # Signal 9 comes from outside: from a person, or from a full machine.
        from_outside = result.cause == "signal 9"
        if not earlier and not from_outside:
            return Outcome(request=request, result=result, earlier=())
        alone, _ = self._answer(request, fresh=True)
        # A reused process may also be slow or full through no fault of one case.
        damaged = result.cause.startswith(("signal ", "exit ")) and not from_outside
        if damaged and not isinstance(alone, Death):
            self.blame(
                earlier,
                request,
                symptom=result.cause,
                shows=lambda again: isinstance(again, Death),
            )
        return Outcome(request=request, result=alone, earlier=())

    def blame(
        self,
        earlier: tuple[Request, ...],
        victim: Request,
        *,
        symptom: str,
        shows: Callable[[str | Death], bool],
    ) -> None:
        """Find which earlier cases of a process harm the victim, and note the culprit.

        Halves the cases run before the victim in a fresh process, so that about twice
        as many cases run again as there were.

        Args:
            earlier: What the process had answered before, in order.
            victim: What showed the harm, and shows none in a fresh process.
            symptom: What was seen, in a few words.
            shows: Whether a result of the victim (or a death before it) shows it.
        """

        def harmful(cases: tuple[Request, ...]) -> bool:
            return shows(self._sequence((*cases, victim)))

        damaging, reproduced = earlier, harmful(earlier)
        if reproduced:
            first, past = 0, len(earlier)
            while past - first > 1:
                middle = (first + past) // 2
                if harmful(earlier[middle:]):
                    first = middle
                else:
                    past = middle
            damaging = earlier[first:]
            if len(damaging) > 1 and harmful(damaging[:1]):
                damaging = damaging[:1]
        self._culprits.append(
            Culprit(
                damaging=damaging,
                victim=victim,
                symptom=symptom,
                reproduced=reproduced,
            )
        )

    def take_culprits(self) -> tuple[Culprit, ...]:
        """The culprits noted since the last call."""
        culprits = tuple(self._culprits)
        self._culprits.clear()
        return culprits

    def close(self) -> None:
        """End the zygote and its child; a later case starts another."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _sequence(self, requests: tuple[Request, ...]) -> str | Death:
        """Run requests in one fresh process; the last result, or the first death."""
        result: str | Death = ""
        for position, request in enumerate(requests):
            result, _ = self._answer(request, fresh=position == 0)
            if isinstance(result, Death):
                break
        return result

    def _answer(
        self, request: Request, *, fresh: bool
    ) -> tuple[str | Death, tuple[Request, ...]]:
        """A request's result, and what its process had answered before."""
        while True:
            zygote = self._started()
            try:
                return self._attempt(zygote, request, fresh=fresh)
            except ZygoteDied as error:
                how = zygote.close()
                self._zygote = None
                self._restarts += 1
                if self._restarts > RESTARTS_MAX:
                    raise IsolationError(
                        f"the isolating process died {self._restarts} times, at last "
                        f"with {how}; the case it was to run: {request.case[:2_000]}"
                    ) from error

    def _started(self) -> Zygote:
        if self._zygote is None:
            began = time.monotonic()
            zygote = Zygote(self._setup)
            try:
                report = zygote.report(START_TIMEOUT_S)
            except ZygoteDied as error:
                raise IsolationError(
                    f"the isolating process ended at its start: {zygote.close()}"
                ) from error
            except BaseException:
                zygote.close()
                raise
            assert isinstance(report, Ready), report
            self._zygote = zygote
            self._startup_s += time.monotonic() - began
        return self._zygote

    def _attempt(
        self, zygote: Zygote, request: Request, *, fresh: bool
    ) -> tuple[str | Death, tuple[Request, ...]]:
        child = zygote.child
        try:
            if (
                fresh
                or child is None
                or child.exit_code is not None
                or child.target != request.target
                or len(child.answered) >= CASES_PER_CHILD
            ):
                began = time.monotonic()
                first = request.target not in zygote.imported
                child = zygote.fork(request.target)
                self._startup_s += time.monotonic() - began if first else 0.0
            earlier = tuple(child.answered)
            answer = zygote.answer(child, request)
        except (ZygoteDied, IsolationError):
            raise
        except BaseException:
            # A child left in mid-case would answer the next with this one's result.
            self.close()
            raise
        child.answered.append(request)
        if isinstance(answer, Death):
            return answer, earlier
        if answer.startswith(b"E"):
            zygote.drop_child()
            traceback = msgspec.json.decode(answer[1:], type=str)
            raise IsolationError(
                f"target {request.target} raised, which is no observation of the tree, "
                f"on {request.case[:2_000]}\n{traceback}"
            )
        return answer[1:-1].decode(), earlier
