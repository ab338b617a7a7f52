"""The events of local jobs in a file, a line each: what was said stays readable after the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cpr_operator.cluster.protocol import Event

FILE = "events.jsonl"


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event about the job of that uid. time: when it was emitted first, in seconds since the epoch."""

    time: float
    uid: str
    type: str
    reason: str
    message: str


def append_event(workdir: Path, uid: str, event: Event, now: float) -> None:
    """Add an event to those of the working folder."""
    line = json.dumps(asdict(EventLine(now, uid, event.type, event.reason, event.message)))
    with (workdir / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read_events(workdir: Path, uid: str) -> Iterator[EventLine]:
    """The events of a job, oldest first. A line that a killed run left half written is left out."""
    path = workdir / FILE
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            said = EventLine(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if said.uid == uid:
            yield said
