"""A cluster in memory with Kubernetes' semantics and virtual time, and a job's processes in it.

`calls` counts what changes the cluster; `fault` may raise before or after such a call, to crash its caller there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.roster import ShardRoster, TrainerRoster
from cpr_contract.spec import JobSpec
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ConflictError,
    Event,
    Manifest,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from cpr_operator.cluster.views import ContainerView, JobView, PodView
from support.fake_pods import FLUSH_S, DataPlane

START_S = 0.4
#: How long the control plane takes to find a node lost and to evict its pods.
TAINT_S = 5.0
#: How long an ended pod that was deleted can still be seen.
SEEN_S = 0.2

T = TypeVar("T")
When = Literal["before", "after"]


@dataclass
class Pod:
    """A pod, and when the kubelet will do something about it."""

    manifest: dict[str, Any]
    uid: str
    created: float
    node: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"] = "Pending"
    container: ContainerView | None = None
    deleting_until: float | None = None
    ends_at: float | None = None
    gone_at: float | None = None
    disruption: str = ""
    unschedulable: str = ""
    node_lost: bool = False
    taints_at: float = 0.0

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def meta(self) -> dict[str, Any]:
        return self.manifest["metadata"]  # type: ignore[no-any-return]

    def view(self) -> PodView:
        labels, annotations = self.meta["labels"], self.meta["annotations"]
        running = self.phase == "Running"
        return PodView(
            name=self.name,
            uid=self.uid,
            owner_uid=self.meta["ownerReferences"][0]["uid"],
            role=labels[env.LABEL_ROLE],
            index=int(labels[env.LABEL_INDEX]),
            incarnation=int(labels[env.LABEL_INCARNATION]),
            phase=self.phase,
            created=self.created,
            node=self.node,
            host=f"10.0.0.{int(self.uid.removeprefix('pod-'))}" if running else "",
            port_base=env.DEFAULT_PORT_BASE,
            deleting_until=self.deleting_until,
            disruption=self.disruption,
            unschedulable=self.unschedulable,
            container=self.container,
            roster_version=int(annotations[env.ANNOTATION_ROSTER_VERSION]),
        )


class FakeCluster:
    """Implements `Cluster`. `tick` lets time pass; everything else happens at once."""

    def __init__(self, total: int) -> None:
        self.now = 1_000_000.0
        self.jobs: dict[tuple[str, str], JobView] = {}
        self.pods: dict[str, Pod] = {}
        self.secrets: dict[str, Manifest] = {}
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.events: dict[str, Event] = {}
        self.planes: dict[str, DataPlane] = {}  # by job uid
        self.quota: int | None = None
        self.unschedulable = ""
        self.nodes: tuple[str, ...] = ("node-0", "node-1", "node-2")
        self.total = total
        self.calls: list[str] = []
        self.firsts: set[int] = set()  # numbers of calls that are the first of a pass
        self.fault: Callable[[str, int, When], None] = lambda *_: None
        self.on_pod: Callable[[str, PodView], None] = lambda *_: None
        self.mail_s = 0.0  # from an annotation to the file that a process reads
        self.stale_reads = False  # every other read of the job is one version behind
        self.version = 0
        self.statuses: list[Mapping[str, Any]] = []
        self.history: list[tuple[str, str]] = []  # (created pods' names, uids) in order
        self._uids = 0
        self._reads = 0
        self._former: dict[tuple[str, str], JobView] = {}
        self._mail: list[tuple[float, Callable[[], None]]] = []

    # for tests

    def add_job(self, name: str, spec: Mapping[str, Any], uid: str = "12345678-0000") -> JobView:
        job = JobView("default", name, uid, 1, self._next(), self.now, deleting=False, spec=spec)
        self.jobs["default", name] = job
        return job

    def set_spec(self, name: str, **fields: Any) -> None:
        job = self.jobs["default", name]
        spec = {**job.spec, **fields}
        self.jobs["default", name] = replace(
            job, spec=spec, generation=job.generation + 1, resource_version=self._next()
        )

    def member(self, role: str, index: int) -> Pod:
        """The newest pod of a member."""
        pods = [p for p in self.pods.values() if p.view().role == role and p.view().index == index]
        return max(pods, key=lambda p: p.view().incarnation)

    def plane(self) -> DataPlane:
        return next(iter(self.planes.values()))

    def kill(self, role: str, index: int) -> None:
        """SIGKILL from the node."""
        pod = self.member(role, index)
        if pod.phase == "Running":
            self._plane_of(pod).kill(pod.name)
            self._end(pod, 137, "")

    def exit_with(self, role: str, index: int, code: int, message: str) -> None:
        pod = self.member(role, index)
        self._plane_of(pod).kill(pod.name)
        self._end(pod, code, message)

    def drain(self, role: str, index: int, *, force: bool = False) -> None:
        """The eviction API: delete with grace, and say why. With `force`, no time to save anything."""
        pod = self.member(role, index)
        pod.disruption = "EvictionByEvictionAPI"
        if force:
            self._plane_of(pod).kill(pod.name)
            del self.pods[pod.name]
        else:
            self._terminate(pod)

    def stop(self, role: str, index: int) -> None:
        """SIGSTOP: the process lives and says nothing."""
        process = self._plane_of(pod := self.member(role, index)).process(pod.name)
        if process is not None:
            process.stopped = True

    def lose_node(self, role: str, index: int) -> None:
        """Power off: its pods say nothing any more; in time the control plane marks them as going, for ever."""
        self.stop(role, index)
        pod = self.member(role, index)
        pod.node_lost, pod.taints_at = True, self.now + TAINT_S

    def tick(self, dt: float) -> bool:
        """Let time pass; whether any pod changed."""
        self.now += dt
        before = {name: pod.view() for name, pod in self.pods.items()}
        self._deliver()
        for pod in [*self.pods.values()]:
            self._run_kubelet(pod)
        for plane in self.planes.values():
            plane.tick(self.now, dt)
            for name, (code, message) in plane.ended.items():
                if name in self.pods:
                    self._end(self.pods[name], code, message)
            plane.ended.clear()
        after = {name: pod.view() for name, pod in self.pods.items()}
        for name, view in after.items():
            if before.get(name) != view:
                self.on_pod(self.pods[name].meta["labels"][env.LABEL_JOB], view)
        return before != after

    def collect_garbage(self, owner_uid: str) -> None:
        """The job is gone: so are its pods, with grace."""
        for pod in self.pods.values():
            if pod.view().owner_uid == owner_uid and pod.deleting_until is None:
                self._terminate(pod)

    # `Cluster`

    async def get_job(self, namespace: str, name: str) -> JobView:
        self.firsts.add(len(self.calls))
        key, self._reads = (namespace, name), self._reads + 1
        if key not in self.jobs:
            raise NotFoundError(name)
        former = self._former.get(key)
        stale = self.stale_reads and self._reads % 2 == 0 and former is not None and former.uid == self.jobs[key].uid
        return former if stale and former else self.jobs[key]

    async def list_jobs(self, namespaces: tuple[str, ...]) -> tuple[JobView, ...]:
        return tuple(job for job in self.jobs.values() if not namespaces or job.namespace in namespaces)

    async def list_pods(self, job: JobView) -> tuple[PodView, ...]:
        return tuple(pod.view() for pod in self.pods.values() if pod.meta["labels"][env.LABEL_JOB] == job.name)

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        def write() -> JobView:
            current = self._current(job)
            json.dumps(status)
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
            self._uids += 1
            pod = Pod(json.loads(json.dumps(manifest)), f"pod-{self._uids}", self.now, self._schedule(manifest))
            self.pods[name] = pod
            self.history.append((name, pod.uid))
            return pod.view()

        return self._call("create_pod", create)

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        def delete() -> None:
            pod = self.pods.get(name)
            if pod is not None and pod.uid == uid and pod.deleting_until is None:
                self._terminate(pod, grace_s)

        self._call("delete_pod", delete)

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        def annotate() -> None:
            pod = self.pods.get(name)
            if pod is None or pod.uid != uid:
                raise NotFoundError(name)
            pod.meta["annotations"].update(annotations)
            roster = annotations.get(env.ANNOTATION_ROSTER)
            if roster is not None:
                self._mail.append((self.now + self.mail_s, lambda: self._tell(pod, roster)))
            self._deliver()

        self._call("annotate_pod", annotate)

    async def create_secret(self, manifest: Manifest) -> None:
        self._call("create_secret", lambda: self.secrets.setdefault(manifest["metadata"]["name"], manifest))

    async def apply(self, manifest: Manifest) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        self._call("apply", lambda: self.objects.__setitem__(key, manifest))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        self._call("delete", lambda: self.objects.pop((kind, name), None))

    async def emit(self, job: JobView, event: Event) -> None:
        self._call("emit", lambda: self.events.setdefault(event.key, event))

    async def fetch_report(self, pod: PodView, deadline_s: float) -> bytes | None:
        held = self.pods.get(pod.name)
        return self._plane_of(held).report(pod.name) if held is not None and held.phase == "Running" else None

    # inside

    def _call(self, name: str, change: Callable[[], T]) -> T:
        number = len(self.calls)
        self.calls.append(name)
        self.fault(name, number, "before")
        result = change()
        self.fault(name, number, "after")
        return result

    def _deliver(self) -> None:
        """Let processes read the annotations that their kubelets know by now."""
        due = [deliver for at, deliver in self._mail if at <= self.now]
        self._mail = [(at, deliver) for at, deliver in self._mail if at > self.now]
        for deliver in due:
            deliver()

    def _tell(self, pod: Pod, roster: str) -> None:
        if pod.phase == "Running" and self._plane_of(pod).tell(pod.name, roster):
            pod.ends_at = pod.ends_at or self.now + FLUSH_S

    def _schedule(self, manifest: Manifest) -> str:
        """A node in turn, if the pod keeps off none that is left; else none."""
        allowed = [node for node in self.nodes if node not in kept_off(manifest)]
        return allowed[self._uids % len(allowed)] if allowed else ""

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
        live = sum(pod.phase in {"Pending", "Running"} for pod in self.pods.values())
        if self.quota is not None and live >= self.quota:
            raise RefusedError(f"exceeded quota: pods, used: {live}, limited: {self.quota}")

    def _plane_of(self, pod: Pod) -> DataPlane:
        owner = pod.view().owner_uid
        if owner not in self.planes:
            spec = from_json(JobSpec, _variable(pod.manifest, env.SPEC))
            self.planes[owner] = DataPlane(spec, self.total)
        return self.planes[owner]

    def _terminate(self, pod: Pod, grace_s: int | None = None) -> None:
        grace = pod.manifest["spec"]["terminationGracePeriodSeconds"] if grace_s is None else grace_s
        if grace == 0:
            if pod.phase == "Running":
                self._plane_of(pod).kill(pod.name)
            del self.pods[pod.name]
            return
        pod.deleting_until = self.now + grace
        pod.ends_at = self.now + (FLUSH_S if pod.phase == "Running" else 0.0)

    def _run_kubelet(self, pod: Pod) -> None:
        if pod.node_lost:
            if self.now >= pod.taints_at and pod.deleting_until is None:
                pod.deleting_until, pod.disruption = self.now + 30, "DeletionByTaintManager"
            return
        if pod.gone_at is not None and self.now >= pod.gone_at:
            self.pods.pop(pod.name, None)
            return
        pod.unschedulable = (
            self.unschedulable or ("" if pod.node else "no node matches") if pod.phase == "Pending" else ""
        )
        ready = self.now >= pod.created + START_S and not pod.unschedulable
        if pod.phase == "Pending" and pod.deleting_until is None and ready:
            pod.phase, pod.container = "Running", ContainerView("Running")
            kind = ShardRoster if pod.view().role == env.ROLE_SHARD else TrainerRoster
            roster: Any = from_json(kind, pod.meta["annotations"][env.ANNOTATION_ROSTER])
            self._plane_of(pod).start(pod.name, roster, self.now)
            pod.ends_at = self.now if roster.stop else None
        if pod.ends_at is None or self.now < pod.ends_at or pod.gone_at is not None:
            return
        if pod.phase == "Running":
            process = self._plane_of(pod).process(pod.name)
            if process is not None and process.stopped:  # only SIGKILL ends it
                if pod.deleting_until is not None and self.now >= pod.deleting_until:
                    self._plane_of(pod).kill(pod.name)
                    self._end(pod, 137, "")
                return
            code, message = self._plane_of(pod).flush(pod.name)
            self._end(pod, code, message)
        if pod.deleting_until is not None:
            pod.gone_at = self.now + SEEN_S

    def _end(self, pod: Pod, code: int, message: str) -> None:
        pod.phase = "Succeeded" if code == 0 else "Failed"
        pod.container = ContainerView("Terminated", "Completed" if code == 0 else "Error", message, code)
        if pod.deleting_until is not None:
            pod.gone_at = self.now + SEEN_S


def kept_off(manifest: Manifest) -> set[str]:
    """Nodes that a pod's affinity rules out by name."""
    rules = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = rules.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    return {node for term in terms for field in term["matchFields"] for node in field["values"]}


def _variable(manifest: Mapping[str, Any], name: str) -> str:
    main = next(c for c in manifest["spec"]["containers"] if c["name"] == env.MAIN_CONTAINER)
    return next(str(v["value"]) for v in main["env"] if v["name"] == name)


__all__ = ["FakeCluster", "UnavailableError"]
