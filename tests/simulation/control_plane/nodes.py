"""The nodes of a cluster in memory: pods, kubelets, and a job's processes, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.roster import ShardRoster, TrainerRoster, key_digest
from cpr_contract.spec import JobSpec
from cpr_operator.cluster.protocol import Manifest
from cpr_operator.cluster.views import ContainerView, PodView
from cpr_operator.reconcile.observe import TRAINING_STATES
from simulation.control_plane.pods import FLUSH_S, DataPlane

START_S = 0.4
#: Time of the control plane to find a node lost, and to evict its pods.
TAINT_S = 5.0
#: Duration of a cleanup.
CLEANUP_S = 1.0
#: Time for which an ended pod that was deleted is still visible.
SEEN_S = 0.2
#: States in which a process reports that it is ready.
READY_STATES = frozenset({"Ready", *TRAINING_STATES})


@dataclass
class Pod:
    """A pod, and when the kubelet will do something about it.

    `created` and `deleting_until` are stamps of the API server's clock, all other times are the kubelet's.
    """

    manifest: dict[str, Any]
    uid: str
    created: float
    node: str
    placed_at: float
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"] = "Pending"
    container: ContainerView | None = None
    deleting_until: float | None = None
    grace_s: int | None = None
    kill_at: float = 0.0
    ends_at: float | None = None
    deleted_at: float | None = None
    disruption: str = ""
    unschedulable: str = ""
    node_lost: bool = False
    taints_at: float = 0.0
    ready: bool = False
    shown: tuple[tuple[object, ...], PodView] | None = None

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def owner_uid(self) -> str:
        return str(self.meta["ownerReferences"][0]["uid"])

    @property
    def role(self) -> str:
        return str(self.meta["labels"][env.LABEL_ROLE])

    @property
    def meta(self) -> dict[str, Any]:
        return self.manifest["metadata"]  # type: ignore[no-any-return]

    def view(self) -> PodView:
        """The pod as the API server shows it; the same object until something changes."""
        labels, annotations = self.meta["labels"], self.meta.get("annotations", {})
        version, issued = annotations.get(env.ANNOTATION_ROSTER_VERSION, -1), annotations.get(env.ANNOTATION_ISSUED_CA)
        state = (self.phase, self.node, self.deleting_until, self.disruption, self.unschedulable, self.container)
        state = (*state, self.ready, version, issued, *labels.values())
        if self.shown is None or self.shown[0] != state:
            digest = key_digest(issued.encode()) if issued else ""
            self.shown = state, replace(self._view(labels, int(version)), issued_ca=digest)
        return self.shown[1]

    def _view(self, labels: dict[str, str], roster_version: int) -> PodView:
        running = self.phase == "Running"
        return PodView(
            name=self.name,
            uid=self.uid,
            owner_uid=self.owner_uid,
            role=self.role,
            index=int(labels.get(env.LABEL_INDEX, -1)),
            incarnation=int(labels.get(env.LABEL_INCARNATION, -1)),
            phase=self.phase,
            created=self.created,
            node=self.node,
            host=f"10.0.0.{int(self.uid.removeprefix('pod-'))}" if running else "",
            port_base=env.DEFAULT_PORT_BASE,
            deleting_until=self.deleting_until,
            deletion_grace_s=self.grace_s,
            disruption=self.disruption,
            unschedulable=self.unschedulable,
            container=self.container,
            roster_version=roster_version,
            ready=self.ready,
            job_uid=labels.get(env.LABEL_JOB_UID, ""),
        )


class SimulatedNodes:
    """Kubelets that run the pods of the API server. `tick` lets time pass; everything else happens at once."""

    def __init__(self, total: int) -> None:
        self.now = 1_000_000.0  # of the operator and the kubelets
        self.skew_s = 0.0  # the API server's clock is so far ahead of theirs
        self.pods: dict[str, Pod] = {}
        self.planes: dict[str, DataPlane] = {}  # by job uid
        self.unschedulable = ""
        self.mounts: dict[str, str] = {}  # members without their volumes, as shard/1, and the kubelet's message
        self.nodes: tuple[str, ...] = ("node-0", "node-1", "node-2")
        self.total = total
        self.on_pod: Callable[[str, PodView], None] = lambda *_: None
        self.roster_delay_s = 0.0  # from an annotation to the file that a process reads
        self.history: list[tuple[str, str]] = []  # (created pods' names, uids) in order
        self._uids = 0
        self._rosters: list[tuple[float, Pod, str]] = []  # time, pod and roster of deliveries

    # for tests

    @property
    def server_now(self) -> float:
        """The time that the API server stamps on objects."""
        return self.now + self.skew_s

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

    def spares(self) -> list[Pod]:
        """The pods that wait to become a shard, oldest first."""
        return [pod for pod in self.pods.values() if pod.role == env.ROLE_SPARE]

    def kill_pod(self, name: str) -> None:
        """SIGKILL from the node to any pod."""
        self._plane_of(self.pods[name]).kill(name)
        self._end(self.pods[name], 137, "")

    def exit_with(self, role: str, index: int, code: int, message: str) -> None:
        pod = self.member(role, index)
        self._plane_of(pod).kill(pod.name)
        self._end(pod, code, message)

    def drain(self, role: str, index: int, *, force: bool = False) -> None:
        """The eviction API: delete with grace and a reason. With `force`, no time to save anything."""
        pod = self.member(role, index)
        pod.disruption = "EvictionByEvictionAPI"
        if force:
            self._plane_of(pod).kill(pod.name)
            del self.pods[pod.name]
        else:
            self.terminate(pod)

    def stop(self, role: str, index: int) -> None:
        """SIGSTOP: the process lives and does not answer."""
        process = self._plane_of(pod := self.member(role, index)).process(pod.name)
        if process is not None:
            process.stopped = True

    def lose_node(self, role: str, index: int) -> None:
        """Power off: its pods stop answering; later the control plane marks them as terminating, for ever."""
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
            for name, pod in self.pods.items():
                if (process := plane.process(name)) is not None:
                    pod.ready = process.state in READY_STATES and not process.stopped
        after = {name: pod.view() for name, pod in self.pods.items()}
        for name, view in after.items():
            if before.get(name) != view:
                self.on_pod(self.pods[name].meta["labels"][env.LABEL_JOB], view)
        return before != after

    # for the API server

    def place(self, manifest: Manifest) -> Pod:
        """A new pod, on a node that will have it."""
        self._uids += 1
        copy = json.loads(json.dumps(manifest))
        pod = Pod(copy, f"pod-{self._uids}", self.server_now, self._schedule(manifest), self.now)
        self.pods[pod.name] = pod
        self.history.append((pod.name, pod.uid))
        return pod

    def terminate(self, pod: Pod, grace_s: int | None = None) -> None:
        """Delete it, with its own grace if no other is named."""
        grace = pod.manifest["spec"]["terminationGracePeriodSeconds"] if grace_s is None else grace_s
        if grace == 0:
            if pod.phase == "Running":
                self._plane_of(pod).kill(pod.name)
            del self.pods[pod.name]
            return
        self._mark_deleted(pod, grace)
        pod.ends_at = self.now + (FLUSH_S if pod.phase == "Running" else 0.0)

    def send(self, pod: Pod, roster: str) -> None:
        """Set the annotation, which reaches the process later."""
        self._rosters.append((self.now + self.roster_delay_s, pod, roster))
        self._deliver()

    def report(self, pod: Pod) -> bytes | None:
        """The answer of its process on `/status`."""
        return self._plane_of(pod).report(pod.name) if pod.phase == "Running" else None

    # inside

    def _deliver(self) -> None:
        """Let processes read the annotations that their kubelets have by now."""
        due = [roster for roster in self._rosters if roster[0] <= self.now]
        self._rosters = [roster for roster in self._rosters if roster[0] > self.now]
        for _, pod, roster in due:
            self._hand_over(pod, roster)

    def _hand_over(self, pod: Pod, roster: str) -> None:
        if pod.phase == "Running" and self._plane_of(pod).hand_over(pod.name, roster, self.now):
            pod.ends_at = pod.ends_at or self.now + FLUSH_S

    def _mark_deleted(self, pod: Pod, grace_s: int) -> None:
        pod.deleting_until, pod.grace_s, pod.kill_at = self.server_now + grace_s, grace_s, self.now + grace_s

    def _schedule(self, manifest: Manifest) -> str:
        """A node in turn, if the pod keeps off none that is left; else none."""
        allowed = [node for node in self.nodes if node not in excluded_nodes(manifest)]
        return allowed[self._uids % len(allowed)] if allowed else ""

    def _plane_of(self, pod: Pod) -> DataPlane:
        owner = pod.owner_uid
        if owner not in self.planes:
            self.planes[owner] = DataPlane(_job_spec(pod), self.total)
        return self.planes[owner]

    def _run_kubelet(self, pod: Pod) -> None:
        if pod.node_lost:
            if self.now >= pod.taints_at and pod.deleting_until is None:
                self._mark_deleted(pod, 30)
                pod.disruption = "DeletionByTaintManager"
            return
        if pod.deleted_at is not None and self.now >= pod.deleted_at:
            self.pods.pop(pod.name, None)
            return
        pod.unschedulable = (
            self.unschedulable or ("" if pod.node else "no node matches") if pod.phase == "Pending" else ""
        )
        if pod.phase == "Pending" and f"{pod.role}/{pod.view().index}" in self.mounts:
            pod.container = ContainerView("Waiting", "ContainerCreating")
            return
        ready = self.now >= pod.placed_at + START_S and not pod.unschedulable
        if pod.phase == "Pending" and pod.deleting_until is None and ready:
            self._start(pod)
        if pod.ends_at is None or self.now < pod.ends_at or pod.deleted_at is not None:
            return
        if pod.phase == "Running" and not self._finish(pod):
            return
        if pod.deleting_until is not None:
            pod.deleted_at = self.now + SEEN_S

    def _start(self, pod: Pod) -> None:
        pod.phase, pod.container = "Running", ContainerView("Running")
        if pod.role == env.ROLE_CLEANUP:
            pod.ends_at = self.now + CLEANUP_S
            return
        if pod.role == env.ROLE_PUBLISHER:  # it does nothing that the simulation has
            return
        if pod.role == env.ROLE_SPARE:
            plane = self._plane_of(pod)
            plane.spec = _job_spec(pod)
            plane.spares.add(pod.name)
            return
        kind = ShardRoster if pod.role == env.ROLE_SHARD else TrainerRoster
        roster: Any = from_json(kind, pod.meta["annotations"][env.ANNOTATION_ROSTER])
        plane = self._plane_of(pod)
        plane.spec = _job_spec(pod)
        plane.start(pod.name, roster, self.now)
        pod.ends_at = self.now if roster.stop else None

    def _finish(self, pod: Pod) -> bool:
        """End a process after its time; return whether it has ended."""
        plane = self._plane_of(pod)
        if pod.role == env.ROLE_CLEANUP:
            self._end(pod, *plane.clean_up(_arguments(pod)))
            return True
        process = plane.process(pod.name)
        if process is not None and process.stopped:  # only SIGKILL ends it
            if pod.deleting_until is not None and self.now >= pod.kill_at:
                plane.kill(pod.name)
                self._end(pod, 137, "")
            return False
        self._end(pod, *plane.flush(pod.name))
        return True

    def _end(self, pod: Pod, code: int, message: str) -> None:
        pod.phase = "Succeeded" if code == 0 else "Failed"
        pod.ready = False
        pod.container = ContainerView("Terminated", "Completed" if code == 0 else "Error", message, code)
        if pod.deleting_until is not None:
            pod.deleted_at = self.now + SEEN_S


def excluded_nodes(manifest: Manifest) -> set[str]:
    """Nodes that a pod's affinity rules out by name."""
    rules = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = rules.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    return {node for term in terms for field in term["matchFields"] for node in field["values"]}


def _main(pod: Pod) -> Manifest:
    return next(c for c in pod.manifest["spec"]["containers"] if c["name"] == env.MAIN_CONTAINER)


def _arguments(pod: Pod) -> list[str]:
    return list(_main(pod)["args"])


def _job_spec(pod: Pod) -> JobSpec:
    main = _main(pod)
    return from_json(JobSpec, next(str(v["value"]) for v in main["env"] if v["name"] == env.SPEC))
