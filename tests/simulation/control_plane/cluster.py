"""The API server of a cluster in memory, with Kubernetes' semantics, over the nodes of `nodes.py`.

`calls` counts what changes the cluster; `fault` may raise before or after such a call, to crash its caller there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar

from cpr_contract import env
from cpr_operator.api.base import format_time
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.local.object_files import AppliedObjects
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ConflictError,
    Event,
    Manifest,
    NotFoundError,
    PodPatch,
    Priority,
    RefusedError,
    TerminatingError,
)
from cpr_operator.cluster.views import JobView, PodView, PodWarning
from simulation.control_plane.nodes import SimulatedNodes

T = TypeVar("T")
When = Literal["before", "after"]


class SimulatedCluster(SimulatedNodes):
    """Implements `Cluster`."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.jobs: dict[tuple[str, str], JobView] = {}
        self.secrets: dict[str, Manifest] = {}
        self.applied = AppliedObjects()
        self.objects = self.applied.objects
        self.events: dict[str, Event] = {}
        self.quota: int | None = None
        self.terminating = False  # the namespace is being deleted
        self.calls: list[str] = []
        self.recorded: dict[str, str] = {}  # the last report that the status holds, as pods were informed, by name
        self.looked_up: list[str] = []  # pods with events that were read
        self.sent: list[tuple[str, str, str]] = []  # rosters that pods were sent: name, text, signature
        self.firsts: set[int] = set()  # numbers of calls that are the first of a pass
        self.fault: Callable[[str, int, When], None] = lambda *_: None
        self.stale_reads = False  # every other read of the job, and each cached list of its pods, is one version behind
        self.version = 0
        self.statuses: list[Mapping[str, Any]] = []
        self._reads = 0
        self._former: dict[tuple[str, str], JobView] = {}
        self._listed: dict[tuple[str, str], tuple[PodView, ...]] = {}

    # for tests

    def add_job(
        self, name: str, spec: Mapping[str, Any], uid: str = "12345678-0000", labels: Mapping[str, str] | None = None
    ) -> JobView:
        version, labels = self._next(), labels or {}
        job = JobView("default", name, uid, 1, version, self.server_now, deleting=False, labels=labels, spec=spec)
        self.jobs["default", name] = job
        return job

    def set_spec(self, name: str, **fields: Any) -> None:
        job = self.jobs["default", name]
        spec = {**job.spec, **fields}
        self.jobs["default", name] = replace(
            job, spec=spec, spec_generation=job.spec_generation + 1, resource_version=self._next()
        )

    def user_deletes(self, name: str) -> None:
        """Delete the job, as `kubectl delete cprjob` does."""
        job = self.jobs["default", name]
        if job.finalizers:
            self.jobs["default", name] = replace(job, deleting=True, resource_version=self._next())
        else:
            self._remove(job)

    def collect_garbage(self, owner_uid: str) -> None:
        """The job is gone: so are its pods, with grace, and its Workload, unless a finalizer keeps that."""
        for kind, namespace, name in list(self.objects):
            if kind == "Workload" and _is_owned(self.objects[kind, namespace, name], owner_uid):
                self.applied.delete(kind, namespace, name, format_time(self.server_now))
        for pod in self.pods.values():
            if pod.view().owner_uid == owner_uid and pod.deleting_until is None:
                self.terminate(pod)

    # `Cluster`

    def at(self, priority: Priority) -> Self:
        return self

    async def get_job(self, namespace: str, name: str, *, cached: bool = False) -> JobView:
        self.firsts.add(len(self.calls))
        key, self._reads = (namespace, name), self._reads + 1
        if key not in self.jobs:
            raise NotFoundError(name)
        former = self._former.get(key)
        stale = self.stale_reads and self._reads % 2 == 0 and former is not None and former.uid == self.jobs[key].uid
        return former if stale and former else self.jobs[key]

    async def list_jobs(self, namespaces: tuple[str, ...]) -> tuple[JobView, ...]:
        return tuple(job for job in self.jobs.values() if not namespaces or job.namespace in namespaces)

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:
        key, pods = (job.namespace, job.name), tuple(pod.view() for pod in self.pods.values())
        pods = tuple(pod for pod in pods if self.pods[pod.name].meta["labels"][env.LABEL_JOB] == job.name)
        former, self._listed[key] = self._listed.get(key, pods), pods
        return former if cached and self.stale_reads else pods

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        def write() -> JobView:
            current = self._current(job)
            written = replace(current, status=json.loads(json.dumps(status)), resource_version=self._next())
            self._former[job.namespace, job.name] = current
            self.jobs[job.namespace, job.name] = written
            self.statuses.append(written.status)
            return written

        return self._call("write_status", write)

    async def set_finalizers(self, job: JobView, finalizers: tuple[str, ...]) -> JobView:
        def write() -> JobView:
            written = replace(self._current(job), finalizers=finalizers, resource_version=self._next())
            self.jobs[job.namespace, job.name] = written
            if written.deleting and not finalizers:
                self._remove(written)
            return written

        return self._call("set_finalizers", write)

    async def delete_job(self, job: JobView) -> None:
        def delete() -> None:
            current = self.jobs.get((job.namespace, job.name))
            if current is None or current.uid != job.uid:
                raise NotFoundError(job.name)
            if current.finalizers:
                going = replace(current, deleting=True, resource_version=self._next())
                self.jobs[job.namespace, job.name] = going
            else:
                self._remove(current)

        self._call("delete_job", delete)

    async def check_pod(self, manifest: Manifest) -> None:
        self._admit(manifest)

    async def create_pod(self, manifest: Manifest) -> PodView:
        def create() -> PodView:
            name = manifest["metadata"]["name"]
            if name in self.pods:
                raise AlreadyExistsError(name)
            self._admit(manifest)
            return self.place(manifest).view()

        return self._call("create_pod", create)

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        def delete() -> None:
            pod = self.pods.get(name)
            if pod is not None and pod.uid == uid and pod.deleting_until is None:
                self.terminate(pod, grace_s)

        self._call("delete_pod", delete)

    async def patch_pod(self, namespace: str, patch: PodPatch) -> None:
        def change() -> None:
            pod = self.pods.get(patch.name)
            if pod is None or pod.uid != patch.uid:
                raise NotFoundError(patch.name)
            pod.meta.setdefault("annotations", {}).update(patch.annotations)
            pod.meta["labels"].update(patch.labels)
            roster = patch.annotations.get(env.ANNOTATION_ROSTER)
            if roster is not None:
                self.send(pod, roster)

        self._call("patch_pod", change)

    async def create_secret(self, manifest: Manifest) -> None:
        self._call("create_secret", lambda: self.secrets.setdefault(manifest["metadata"]["name"], manifest))

    async def has_secret(self, manifest: Manifest) -> bool:
        return manifest["metadata"]["name"] in self.secrets

    async def create(self, manifest: Manifest) -> None:
        self._call("create", lambda: self.applied.create(manifest))

    async def apply(self, manifest: Manifest) -> None:
        self._call("apply", lambda: self.applied.apply(manifest))

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self.applied.read(kind, namespace, name)

    async def merge_status(self, read: Manifest, status: Mapping[str, Any]) -> None:
        self._call("merge_status", lambda: self.applied.merge_status(read, status))

    async def remove_finalizer(self, read: Manifest, finalizer: str) -> None:
        self._call("remove_finalizer", lambda: self.applied.remove_finalizer(read, finalizer))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        def delete() -> None:
            self.applied.delete(kind, namespace, name, format_time(self.server_now))
            if kind == "Secret":
                self.secrets.pop(name, None)

        self._call("delete", delete)

    async def emit(self, job: JobView, event: Event) -> None:
        def publish() -> None:
            if self.terminating:
                raise TerminatingError("the namespace is being terminated")
            self.events.setdefault(event.key, event)

        self._call("emit", publish)

    async def newest_warning(self, pod: PodView) -> PodWarning | None:
        self.looked_up.append(pod.name)
        message = self.mounts.get(f"{pod.role}/{pod.index}")
        return None if message is None else PodWarning("FailedMount", message)

    async def fetch_report(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        held = self.pods.get(pod.name)
        self.recorded[pod.name] = recorded
        return self.report(held) if held is not None else None

    async def send_roster(
        self, pod: PodView, roster: str, signature: str, deadline_s: float, tls: PodTLS | None = None
    ) -> None:
        self.sent.append((pod.name, roster, signature))

    async def reaches(self, pod: PodView) -> bool:
        return True

    # inside

    def _call(self, name: str, change: Callable[[], T]) -> T:
        number = len(self.calls)
        self.calls.append(name)
        self.fault(name, number, "before")
        result = change()
        self.fault(name, number, "after")
        return result

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def _current(self, job: JobView) -> JobView:
        current = self.jobs.get((job.namespace, job.name))
        if current is None:
            raise NotFoundError(job.name)
        if (current.uid, current.resource_version) != (job.uid, job.resource_version):
            raise ConflictError(job.name)
        return current

    def _remove(self, job: JobView) -> None:
        del self.jobs[job.namespace, job.name]
        self.collect_garbage(job.uid)

    def _admit(self, manifest: Manifest) -> None:
        if not manifest["spec"]["containers"]:
            raise RefusedError("spec.containers: Required value")
        if self.terminating:
            raise TerminatingError("the namespace is being terminated")
        live = sum(pod.phase in {"Pending", "Running"} for pod in self.pods.values())
        if self.quota is not None and live >= self.quota:
            raise RefusedError(f"exceeded quota: pods, used: {live}, limited: {self.quota}")


def _is_owned(manifest: Manifest, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences", ()))
