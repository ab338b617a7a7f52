"""Jobs and their pods as watches have shown them, so that a pass over a job that trains need not read them.

Whatever a watch shows is compared with what is kept: what says nothing new needs no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from cpr_operator.cluster.views import PodView

#: A watch may lose an event, so what is kept serves for so many seconds at most.
KEPT_S = 300.0

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
    """What is known of each job, by its namespace and name. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[Key, _Job] = {}
        self._pods: dict[Key, _Pods] = {}

    # what watches show

    def on_job_event(self, document: Mapping[str, Any]) -> bool:
        """A watch showed the job. Returns whether the version is another one than the last one read or written."""
        kept = self._jobs.setdefault(_key(document), _Job())
        if kept.version == document["metadata"]["resourceVersion"]:
            return False
        kept.changes += 1
        self._keep_job(kept, document)
        return True

    def on_pod_event(self, namespace: str, name: str, pod: PodView, *, gone: bool) -> bool:
        """A watch showed a pod of the job, which is `gone` now if so. Returns whether that says anything new."""
        kept = self._pods.setdefault((namespace, name), _Pods(self._clock() + KEPT_S))
        if not gone and kept.by_uid.get(pod.uid) == pod:
            return False
        kept.changes += 1
        if gone:
            kept.by_uid.pop(pod.uid, None)
        else:
            kept.by_uid[pod.uid] = pod
        return True

    def listed(self, kind: Kind, namespace: str) -> None:
        """A watch begins anew with a list, which does not say what was deleted meanwhile.

        Nothing that was kept of such objects serves any more; the list shows those that are left. An empty
        `namespace` means all of them.
        """
        kept: dict[Key, Any] = self._pods if kind == "pods" else self._jobs
        for key in [key for key in kept if namespace in {"", key[0]}]:
            del kept[key]

    def forget(self, namespace: str, name: str) -> None:
        """The job is gone."""
        self._jobs.pop((namespace, name), None)
        self._pods.pop((namespace, name), None)

    # what was read or written

    def job_changes(self, namespace: str, name: str) -> int:
        """How often a watch showed another version. Read it before a request, and pass it to `keep_job`."""
        kept = self._jobs.get((namespace, name))
        return kept.changes if kept else 0

    def keep_job(self, changes: int, document: Mapping[str, Any]) -> None:
        """Keep the job as the server answered, unless a watch showed another version meanwhile."""
        kept = self._jobs.setdefault(_key(document), _Job())
        if kept.changes == changes:
            self._keep_job(kept, document)

    def forget_job(self, namespace: str, name: str) -> None:
        """What is kept of the job is not its newest version: it must be read."""
        if (kept := self._jobs.get((namespace, name))) is not None:
            kept.version, kept.document, kept.until = "", b"", float("-inf")

    def find_job(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The job, if what is kept still serves."""
        kept = self._jobs.get((namespace, name))
        if kept is None or self._clock() >= kept.until:
            return None
        document: dict[str, Any] = orjson.loads(kept.document)
        return document

    def pod_changes(self, namespace: str, name: str) -> int:
        """How often a watch showed a change of the job's pods. Read it before a list, and pass it to `keep_pods`."""
        kept = self._pods.get((namespace, name))
        return kept.changes if kept else 0

    def keep_pods(self, namespace: str, name: str, changes: int, pods: Iterable[PodView]) -> None:
        """Keep the job's pods as the server listed them, unless a watch showed a change meanwhile."""
        until = self._clock() + KEPT_S
        kept = self._pods.setdefault((namespace, name), _Pods(until))
        if kept.changes == changes:
            kept.until, kept.by_uid = until, {pod.uid: pod for pod in pods}

    def find_pods(self, namespace: str, name: str) -> tuple[PodView, ...] | None:
        """The job's pods, if what is kept still serves."""
        kept = self._pods.get((namespace, name))
        return tuple(kept.by_uid.values()) if kept and self._clock() < kept.until else None

    def _keep_job(self, kept: _Job, document: Mapping[str, Any]) -> None:
        meta = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
        kept.version, kept.until = meta["resourceVersion"], self._clock() + KEPT_S
        kept.document = orjson.dumps({**document, "metadata": meta})


def _key(document: Mapping[str, Any]) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]
