"""Jobs and their pods as watches have shown them, so that a pass over a training job need not read them.

A watch event is compared with the cached object: an event without changes needs no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from cpr_operator.cluster.views import PodView

#: Maximum age of a cached object in seconds, because a watch may lose an event.
FRESH_S = 300.0

Key = tuple[str, str]
Kind = Literal["jobs", "pods"]


@dataclass(slots=True)
class _Job:
    """`document` is JSON text, a tenth as large as its objects would be."""

    changes: int = 0
    version: str = ""
    document: bytes = b""
    until: float = float("-inf")


@dataclass(slots=True)
class _Pods:
    until: float
    changes: int = 0
    by_uid: dict[str, PodView] = field(default_factory=dict)


class WatchCache:
    """The cached objects of each job, by its namespace and name. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[Key, _Job] = {}
        self._pods: dict[Key, _Pods] = {}

    # --- Events of watches

    def on_job_event(self, document: Mapping[str, Any]) -> bool:
        """Cache the job of a watch event. Returns True if the version differs from the last one read or written."""
        job = self._jobs.setdefault(_key(document), _Job())
        if job.version == document["metadata"]["resourceVersion"]:
            return False
        job.changes += 1
        self._store(job, document)
        return True

    def on_pod_event(self, namespace: str, name: str, pod: PodView, *, deleted: bool) -> bool:
        """Cache a pod of the job, or remove a `deleted` one. Returns True if that changes the cache."""
        pods = self._pods.setdefault((namespace, name), _Pods(self._clock() + FRESH_S))
        if not deleted and pods.by_uid.get(pod.uid) == pod:
            return False
        pods.changes += 1
        if deleted:
            pods.by_uid.pop(pod.uid, None)
        else:
            pods.by_uid[pod.uid] = pod
        return True

    def listed(self, kind: Kind, namespace: str) -> None:
        """Drop the objects of a namespace (empty: of all), because its watch restarts with a list.

        The list shows the existing objects, but not the deletions since the last watch.
        """
        cached: dict[Key, Any] = self._pods if kind == "pods" else self._jobs
        for key in [key for key in cached if namespace in {"", key[0]}]:
            del cached[key]

    def forget(self, namespace: str, name: str) -> None:
        """Drop a deleted job."""
        self._jobs.pop((namespace, name), None)
        self._pods.pop((namespace, name), None)

    # --- Reads and writes

    def job_changes(self, namespace: str, name: str) -> int:
        """The number of versions that a watch has shown. Read it before a request, and pass it to `store_job`."""
        job = self._jobs.get((namespace, name))
        return job.changes if job else 0

    def store_job(self, changes: int, document: Mapping[str, Any]) -> None:
        """Cache the server's answer, unless a watch has shown another version since the request."""
        job = self._jobs.setdefault(_key(document), _Job())
        if job.changes == changes:
            self._store(job, document)

    def expire_job(self, namespace: str, name: str) -> None:
        """Drop an outdated version: the job must be read."""
        if (job := self._jobs.get((namespace, name))) is not None:
            job.version, job.document, job.until = "", b"", float("-inf")

    def find_job(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The job, if the cached version is recent."""
        job = self._jobs.get((namespace, name))
        if job is None or self._clock() >= job.until:
            return None
        document: dict[str, Any] = orjson.loads(job.document)
        return document

    def pod_changes(self, namespace: str, name: str) -> int:
        """The number of changes of the job's pods. Read it before a list, and pass it to `store_pods`."""
        pods = self._pods.get((namespace, name))
        return pods.changes if pods else 0

    def store_pods(self, namespace: str, name: str, changes: int, listed: Iterable[PodView]) -> None:
        """Cache the listed pods of the job, unless a watch has shown a change since the request."""
        until = self._clock() + FRESH_S
        pods = self._pods.setdefault((namespace, name), _Pods(until))
        if pods.changes == changes:
            pods.until, pods.by_uid = until, {pod.uid: pod for pod in listed}

    def find_pods(self, namespace: str, name: str) -> tuple[PodView, ...] | None:
        """The job's pods, if the cached ones are recent."""
        pods = self._pods.get((namespace, name))
        return tuple(pods.by_uid.values()) if pods and self._clock() < pods.until else None

    def _store(self, job: _Job, document: Mapping[str, Any]) -> None:
        meta = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
        job.version, job.until = meta["resourceVersion"], self._clock() + FRESH_S
        job.document = orjson.dumps({**document, "metadata": meta})


def _key(document: Mapping[str, Any]) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]
