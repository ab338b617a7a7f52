"""Objects that are applied and kept in memory, with versions and finalizers, as an API server keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from cpr_operator.cluster.protocol import ConflictError, Manifest, NotFoundError

Key = tuple[str, str, str]


class AppliedObjects:
    """`objects` are by kind, namespace and name. See `Cluster` for each method."""

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self._versions = itertools.count(1)

    def apply(self, manifest: Manifest) -> None:
        """Store the object; its status stays."""
        status = self.objects.get(_key_of(manifest), {}).get("status", {})
        self._keep({**manifest, "status": status})

    def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, None if absent."""
        return self.objects.get((kind, namespace, name))

    def merge_status(self, read: Manifest, status: Mapping[str, Any]) -> None:
        """Raises ConflictError, NotFoundError."""
        stored = self._as_read(read)
        merged = {**stored["status"], **status}
        self._keep({**stored, "status": {name: value for name, value in merged.items() if value is not None}})

    def remove_finalizer(self, read: Manifest, finalizer: str) -> None:
        """Raises ConflictError, NotFoundError."""
        stored = self._as_read(read)
        meta = stored["metadata"]
        left = [each for each in meta.get("finalizers", ()) if each != finalizer]
        if "deletionTimestamp" in meta and not left:
            del self.objects[_key_of(stored)]
        else:
            self._keep({**stored, "metadata": {**meta, "finalizers": left}})

    def delete(self, kind: str, namespace: str, name: str, stamp: str) -> None:
        """Delete the object, or mark it as deleted at the time `stamp` if it has finalizers."""
        stored = self.objects.get((kind, namespace, name))
        if stored is not None and stored["metadata"].get("finalizers"):
            self._keep({**stored, "metadata": {"deletionTimestamp": stamp, **stored["metadata"]}})
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

    def _keep(self, stored: Manifest) -> None:
        version = str(next(self._versions))
        meta = {"uid": "-".join(_key_of(stored)), **stored["metadata"], "resourceVersion": version}
        self.objects[_key_of(stored)] = {**stored, "metadata": meta}


def _key_of(manifest: Manifest) -> Key:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]
