"""Objects of one kind as JSON files, with Kubernetes' optimistic concurrency."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpr_operator.cluster.local.files import read_json, write_json
from cpr_operator.cluster.protocol import AlreadyExistsError, ConflictError, NotFoundError

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
