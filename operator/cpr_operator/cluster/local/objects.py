"""Objects and events of a local cluster as JSON files, with Kubernetes' optimistic concurrency."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cpr_operator.cluster.protocol import AlreadyExistsError, ConflictError, Event, NotFoundError

# Small files, written so that a reader sees the old or the new content, never a part.


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace the file at `path`; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file by `value` as indented JSON, for people to read."""
    write_atomically(path, json.dumps(value, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value


Object = dict[str, Any]


class ObjectFiles:
    """`FOLDER/NAMESPACE/NAME.json`. Every write raises the object's resourceVersion."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = itertools.count(
            1 + max((int(o["metadata"]["resourceVersion"]) for o in self.all()), default=0)
        )

    def read(self, namespace: str, name: str) -> Object:
        """The object. Raises NotFoundError."""
        found = read_json(self._path(namespace, name))
        if found is None:
            raise NotFoundError(f"{namespace}/{name} not found")
        return found

    def all(self) -> Iterator[Object]:
        """All objects of all namespaces, by namespace and name."""
        for path in sorted(self._folder.glob("*/*.json")):
            if (found := read_json(path)) is not None:
                yield found

    def create(self, document: Object, created: str) -> Object:
        """Store a new object with a uid of its own. Raises AlreadyExistsError."""
        meta = document["metadata"]
        if self._path(meta["namespace"], meta["name"]).exists():
            raise AlreadyExistsError(f"{meta['namespace']}/{meta['name']} already exists")
        fresh = {**meta, "uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": created}
        return self._write({**document, "metadata": fresh})

    def replace(self, changed: Object) -> Object:
        """Store a changed object if nobody wrote since it was read. Raises ConflictError, NotFoundError.

        A change of spec raises its generation; a write that changes nothing keeps its resourceVersion.
        """
        meta = changed["metadata"]
        stored = self.read(meta["namespace"], meta["name"])
        old = stored["metadata"]
        if (old["uid"], old["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
            raise ConflictError(f"{meta['name']} was modified: its version is {old['resourceVersion']}")
        if changed == stored:
            return stored
        if changed.get("spec") != stored.get("spec"):
            changed = {**changed, "metadata": {**meta, "generation": old["generation"] + 1}}
        return self._write(changed)

    def remove(self, namespace: str, name: str) -> None:
        """Forget the object, if it is there."""
        self._path(namespace, name).unlink(missing_ok=True)

    def _write(self, document: Object) -> Object:
        meta = {**document["metadata"], "resourceVersion": str(next(self._versions))}
        written = {**document, "metadata": meta}
        write_json(self._path(meta["namespace"], meta["name"]), written)
        return written

    def _path(self, namespace: str, name: str) -> Path:
        return self._folder / namespace / f"{name}.json"


# The events of local jobs in a file, a line each: what was said stays readable after the run.


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
