"""Progress without a terminal: a line says what has changed, and nothing twice."""

import io
from pathlib import Path

from fuzz.progress import Watcher
from reports.events import Event, EventLog, Progress, WorkerStarted


def test_a_line_tells_what_has_changed_and_nothing_twice(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events-gw0.jsonl")
    watcher = Watcher(tmp_path, out=io.StringIO())

    def line(*events: Event) -> str:
        for event in events:
            log.write(event)
        watcher._read()
        return watcher._line()

    assert "importing vLLM" in line()
    assert line() == ""
    assert line(WorkerStarted(worker="gw0", startup_s=1.0)).endswith("1 ready")
    one, two = (
        Progress(shard=f"{name}/wired/0", cases=7) for name in ("page_size", "toy")
    )
    assert "page_size/wired 7 cases" in line(one)
    second = line(two)
    assert "toy/wired 7 cases" in second
    assert "page_size" not in second
    assert line() == ""
    assert "page_size/wired 14 cases" in line(one)
    log.close()
