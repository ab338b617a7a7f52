"""The inputs of a pass: a job and its pods as plain values, and Kubernetes objects converted to these. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cpr_contract import env
from cpr_contract.roster import key_digest
from cpr_operator.api.base import epoch
from cpr_operator.api.cprjob_spec import KIND
from cpr_operator.api.quantities import main_container

#: Seconds after the end of its grace period until a pod under deletion counts as deleted.
GRACE_SLACK_S = 1.0
#: A kubelet restarts a container at once for the first time, and after it has run for these seconds; else it waits
#: 10 s, then twice as long each time.
BACKOFF_S = 600.0
#: Reasons of a container that waits during its normal start.
STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The state of the pod's main container, from `state`, or from `lastState` if only that is terminated.

    Restarting: it has ended, and its kubelet is about to restart it in the pod.
    """

    kind: Literal["Waiting", "Running", "Restarting", "Terminated"]
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class BlockingContainer:
    """A container other than `main` that keeps its pod from starting, such as an init container.

    reason, message: the kubelet's. exit_code: of its last end; None if it has not ended.
    """

    name: str
    reason: str
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class PodWarning:
    """A Warning event of a pod, by a kubelet or a controller."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. Times are seconds since the epoch.

    host: the pod's address, empty until it has one.
    deleting_until: deletionTimestamp, which includes the grace period; None if the pod is not being deleted.
    deletion_grace_s: 0 if the deletion is forced, or the kubelet has finished it.
    disruption: the reason of the condition DisruptionTarget=True.
    unschedulable: the scheduler's message, if no node fits.
    gates: the names of the scheduling gates that keep it from the scheduler.
    blocking_container: another container that keeps it from starting.
    owner_uid: the uid of the controlling CPRJob.
    job_uid: the label of that name, which pods of version 0.1.0 lack.
    namespace: empty in local mode, where all pods are of one person.
    roster_version: the version last written to the roster's annotation; -1 if there is none.
    issued_ca: a digest of the annotation with the job's CA as it was issued; empty if there is none.
    ready: the kubelet's condition Ready. In local mode no kubelet sets it.
    restarts: the number of restarts of the main container in the pod.
    last_end: its last end, if it runs again.
    """

    name: str
    uid: str
    owner_uid: str
    role: str
    index: int
    incarnation: int
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    created: float
    node: str = ""
    host: str = ""
    port_base: int = 0
    reason: str = ""
    message: str = ""
    deleting_until: float | None = None
    deletion_grace_s: int | None = None
    disruption: str = ""
    unschedulable: str = ""
    gates: tuple[str, ...] = ()
    blocking_container: BlockingContainer | None = None
    container: ContainerView | None = None
    restarts: int = 0
    last_end: ContainerView | None = None
    roster_version: int = -1
    issued_ca: str = ""
    ready: bool = False
    job_uid: str = ""
    namespace: str = ""

    @property
    def ended(self) -> bool:
        """True if the process has ended. The container's state decides, because not only the kubelet writes phases."""
        if self.container is not None:
            return self.container.kind == "Terminated"
        return self.phase in {"Succeeded", "Failed"}

    def is_stuck(self, now: float) -> bool:
        """Return True if the pod's grace period is over: it remains only because its node does not answer."""
        return self.deleting_until is not None and now >= self.deleting_until + GRACE_SLACK_S


@dataclass(frozen=True, slots=True)
class JobView:
    """A CPRJob object as read. `spec` and `status` are plain JSON; the caller validates them."""

    namespace: str
    name: str
    uid: str
    spec_generation: int
    resource_version: str
    created: float
    deleting: bool
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)


def job_view(job: Mapping[str, Any]) -> JobView:
    """A CPRJob object as a view."""
    meta = job["metadata"]
    return JobView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        spec_generation=meta.get("generation", 0),
        resource_version=meta["resourceVersion"],
        created=epoch(meta.get("creationTimestamp")) or 0.0,
        deleting="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers", ())),
        annotations=meta.get("annotations", {}),
        labels=meta.get("labels", {}),
        spec=job.get("spec", {}),
        status=job.get("status", {}),
    )


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """A v1 Pod as a view. A pod without our labels has role '' and number -1, so it is not a member of a job.

    Evicted pods have no containerStatuses, and pending pods no conditions.
    """
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    variables = main_container(pod).get("env", ())
    ports = (each.get("value") for each in variables if each.get("name") == env.PORT_BASE)
    gates = tuple(gate["name"] for gate in spec.get("schedulingGates", ()))
    owners = (each for each in meta.get("ownerReferences", ()) if each.get("controller") and each.get("kind") == KIND)
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        owner_uid=next((str(owner["uid"]) for owner in owners), ""),
        role=labels.get(env.LABEL_ROLE, ""),
        index=_number(labels.get(env.LABEL_INDEX)),
        incarnation=_number(labels.get(env.LABEL_INCARNATION)),
        phase=status.get("phase", "Pending"),
        created=epoch(meta.get("creationTimestamp")) or 0.0,
        node=spec.get("nodeName", ""),
        host=status.get("podIP", ""),
        port_base=int(next(ports, None) or env.DEFAULT_PORT_BASE),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        deleting_until=epoch(meta.get("deletionTimestamp")),
        deletion_grace_s=meta.get("deletionGracePeriodSeconds"),
        disruption=_condition(conditions, "DisruptionTarget", "True").get("reason", ""),
        unschedulable="" if gates else _condition(conditions, "PodScheduled", "False").get("message", ""),
        gates=gates,
        blocking_container=_blocking_container(pod),
        container=_container(pod),
        restarts=_main_status(pod).get("restartCount", 0),
        last_end=_ended(_main_status(pod).get("lastState", {}).get("terminated")),
        roster_version=_number(annotations.get(env.ANNOTATION_ROSTER_VERSION)),
        issued_ca=key_digest(text.encode()) if (text := annotations.get(env.ANNOTATION_ISSUED_CA)) else "",
        ready=bool(_condition(conditions, "Ready", "True")),
        job_uid=labels.get(env.LABEL_JOB_UID, ""),
        namespace=meta.get("namespace", ""),
    )


def _condition(conditions: Mapping[str, Mapping[str, Any]], kind: str, status: str) -> Mapping[str, Any]:
    condition = conditions.get(kind, {})
    return condition if condition.get("status") == status else {}


def _main_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((each for each in statuses if each.get("name") == env.MAIN_CONTAINER), {})


def _container(pod: Mapping[str, Any]) -> ContainerView | None:
    main = _main_status(pod)
    if not main:
        return None
    state = main.get("state", {})
    if "running" in state:
        return ContainerView("Running")
    ended = _ended(state.get("terminated") or main.get("lastState", {}).get("terminated"))
    if ended is not None:
        return replace(ended, kind="Restarting") if _restarts_at_once(pod, main) else ended
    waiting = state.get("waiting", {})
    return ContainerView("Waiting", waiting.get("reason", ""), waiting.get("message", ""))


def _blocking_container(pod: Mapping[str, Any]) -> BlockingContainer | None:
    """The first container other than `main` that cannot start, or the init container that has failed."""
    status = pod.get("status", {})
    for kind in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(kind, ()):
            if each["name"] == env.MAIN_CONTAINER:
                continue
            state = each.get("state", {})
            ended = state.get("terminated") or each.get("lastState", {}).get("terminated") or {}
            code, waiting = ended.get("exitCode"), state.get("waiting", {})
            if waiting.get("reason", "") not in STARTING:
                return BlockingContainer(each["name"], waiting["reason"], waiting.get("message", ""), code)
            if kind == "initContainerStatuses" and "terminated" in state and code:
                return BlockingContainer(each["name"], ended.get("reason", "Error"), ended.get("message", ""), code)
    return None


def _ended(terminated: Mapping[str, Any] | None) -> ContainerView | None:
    if terminated is None:
        return None
    reason, message = terminated.get("reason", ""), terminated.get("message", "")
    return ContainerView("Terminated", reason, message, terminated.get("exitCode"))


def _restarts_at_once(pod: Mapping[str, Any], main: Mapping[str, Any]) -> bool:
    """Return True if the kubelet restarts the ended main container at once.

    The pod's rules decide: a server without the feature has dropped them. After a second end within `BACKOFF_S`
    the kubelet would wait, and another pod starts sooner.
    """
    if pod.get("status", {}).get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
        return False
    state = main.get("state", {})
    ended = state.get("terminated") or main.get("lastState", {}).get("terminated") or {}
    rules = main_container(pod).get("restartPolicyRules", ())
    codes = {code for rule in rules for code in rule.get("exitCodes", {}).get("values", ())}
    if ended.get("exitCode") not in codes or state.get("waiting", {}).get("reason") == "CrashLoopBackOff":
        return False
    started, ended_at = epoch(ended.get("startedAt")), epoch(ended.get("finishedAt"))
    lasted = started is not None and ended_at is not None and ended_at - started >= BACKOFF_S
    return main.get("restartCount", 0) == 0 or lasted


def _number(text: str | None) -> int:
    """A label as a number; -1 if it is not a number."""
    return int(text) if text is not None and text.isdecimal() else -1
