"""Objects of a local cluster, with Kubernetes' optimistic concurrency: jobs in JSON files, others in memory.

The events of jobs are a file with one line each.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cpr_operator.cluster.protocol import AlreadyExistsError, ConflictError, Event, Manifest, NotFoundError

Object = dict[str, Any]
Key = tuple[str, str, str]

EVENTS_FILE = "events.jsonl"


class ObjectFiles:
    """Jobs as files `FOLDER/NAMESPACE/NAME.json`. Every write raises the object's resourceVersion."""

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
        """Store a changed object if it was not written since it was read. Raises ConflictError, NotFoundError.

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
        """Delete the object, if it exists."""
        self._path(namespace, name).unlink(missing_ok=True)

    def _write(self, document: Object) -> Object:
        meta = {**document["metadata"], "resourceVersion": str(next(self._versions))}
        written = {**document, "metadata": meta}
        write_json(self._path(meta["namespace"], meta["name"]), written)
        return written

    def _path(self, namespace: str, name: str) -> Path:
        return self._folder / namespace / f"{name}.json"


class AppliedObjects:
    """Applied objects in memory, by kind, namespace and name. See `Cluster` for each method."""

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self._versions = itertools.count(1)

    def apply(self, manifest: Manifest) -> None:
        """Store the object; what the manifest does not name stays, such as its status."""
        stored = self.objects.get(_key_of(manifest), {"metadata": {}, "status": {}})
        old, new = stored["metadata"], manifest["metadata"]
        labels = {**old.get("labels", {}), **new.get("labels", {})}
        self._store({**stored, **manifest, "metadata": {**old, **new, "labels": labels}})

    def create(self, manifest: Manifest) -> None:
        """Store the object unless there is one of its name."""
        if _key_of(manifest) not in self.objects:
            self.apply(manifest)

    def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, None if absent."""
        return self.objects.get((kind, namespace, name))

    def merge_status(self, read: Manifest, status: Mapping[str, Any]) -> None:
        """Raises ConflictError, NotFoundError."""
        stored = self._as_read(read)
        merged = {**stored["status"], **status}
        self._store({**stored, "status": {name: value for name, value in merged.items() if value is not None}})

    def remove_finalizer(self, read: Manifest, finalizer: str) -> None:
        """Raises ConflictError, NotFoundError."""
        stored = self._as_read(read)
        meta = stored["metadata"]
        others = [each for each in meta.get("finalizers", ()) if each != finalizer]
        if "deletionTimestamp" in meta and not others:
            del self.objects[_key_of(stored)]
        else:
            self._store({**stored, "metadata": {**meta, "finalizers": others}})

    def delete(self, kind: str, namespace: str, name: str, stamp: str) -> None:
        """Delete the object, or mark it as deleted at the time `stamp` if it has finalizers."""
        stored = self.objects.get((kind, namespace, name))
        if stored is not None and stored["metadata"].get("finalizers"):
            self._store({**stored, "metadata": {"deletionTimestamp": stamp, **stored["metadata"]}})
        else:
            self.objects.pop((kind, namespace, name), None)

    def _as_read(self, read: Manifest) -> Manifest:
        name, version = read["metadata"]["name"], read["metadata"]["resourceVersion"]
        stored = self.objects.get(_key_of(read))
        if stored is None:
            raise NotFoundError(f"{name} not found")
        if stored["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"{name} was modified")
        return stored

    def _store(self, stored: Manifest) -> None:
        version = str(next(self._versions))
        meta = {"uid": "-".join(_key_of(stored)), **stored["metadata"], "resourceVersion": version}
        self.objects[_key_of(stored)] = {**stored, "metadata": meta}


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event about the job of that uid. time: its first emission, in seconds since the epoch."""

    time: float
    uid: str
    type: str
    reason: str
    message: str


def append_event(workdir: Path, uid: str, event: Event, now: float) -> None:
    """Add an event to those of the working folder."""
    line = json.dumps(asdict(EventLine(now, uid, event.type, event.reason, event.message)))
    with (workdir / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read_events(workdir: Path, uid: str) -> Iterator[EventLine]:
    """The events of a job, oldest first. A line that a killed run wrote in part is left out."""
    path = workdir / EVENTS_FILE
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            event = EventLine(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if event.uid == uid:
            yield event


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace the file at `path`; a reader sees the old or the new content, never a part. The folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)  # without it, a machine that stops may leave an empty file
    temporary.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file by `value` as indented JSON."""
    write_atomically(path, json.dumps(value, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value


def _key_of(manifest: Manifest) -> Key:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]
