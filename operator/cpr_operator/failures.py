"""Classifies the failure of a pod, by the first line of this table that applies.

    1  DisruptionTarget, and the pod leaves          Disruption (preemption, drain, taint, pod GC)
    2  status.reason                                 Evicted, NodeLost, NodeShutdown, Rejected, Preempted, ...
    3  the main container ended                      OOMKilled, Flushed, Superseded, BadSpec, ..., Killed, Crashed
    4  a waiting reason, or unschedulable            `Trouble`: not a failure yet, but a user has to act
    5  gone without a terminal state                 Vanished
    6  deleted and still there                       Vanished (by force), NodeLost (phase Unknown), else Deleted

The pod of a hung member looks healthy. `hung` makes that failure from the reports of its peers.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from cpr_contract.codec import ContractError, from_json
from cpr_contract.reports import ExitCode, Problem, SaveRef
from cpr_contract.roster import AnchorRef
from cpr_operator.cluster.views import STARTING, BlockingContainer, PodView

T = TypeVar("T")

OOM_KILLED = "OOMKilled"
UNSCHEDULABLE = "Unschedulable"
#: Reason of UNDONE: the leader exited normally after its final anchor was committed, and its message cannot be read.
RESULT_UNREADABLE = "ResultUnreadable"
_SIGNAL_BASE = 128
#: The beginning of a `Problem` (its keys are sorted), and the maximum of characters shown of an unreadable one.
_PROBLEM, _SHOWN_CHARS = '{"message":', 400


class Kind(enum.StrEnum):
    """All kinds of failure."""

    DISRUPTION = "Disruption"
    DELETED = "Deleted"  # the pod is being deleted, without a disruption condition
    VANISHED = "Vanished"  # only an API call removes a pod that has not ended, so this is a disruption seen too late
    NODE_LOST = "NodeLost"
    NODE_SHUTDOWN = "NodeShutdown"
    PREEMPTED = "Preempted"
    FLUSHED = "Flushed"  # ended by SIGTERM, with everything saved
    EVICTED = "Evicted"  # without DisruptionTarget: over its own limits
    REJECTED = "Rejected"  # the kubelet did not admit it
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    OOM_KILLED = "OOMKilled"
    KILLED = "Killed"  # by a signal
    CRASHED = "Crashed"
    HUNG = "Hung"
    SUPERSEDED = "Superseded"
    UNDONE = "Undone"  # its training ended, but the result was rolled back or had lost too much
    STORE_UNREACHABLE = "StoreUnreachable"
    BAD_SPEC = "BadSpec"
    BAD_DATA = "BadData"
    DAMAGED = "Damaged"
    CONTRACT = "Contract"
    STORE_UNSUITABLE = "StoreUnsuitable"


#: Kinds that are not the job's fault, so they do not count towards the restart limit.
FREE = frozenset(
    {
        Kind.DISRUPTION,
        Kind.DELETED,
        Kind.VANISHED,
        Kind.NODE_LOST,
        Kind.NODE_SHUTDOWN,
        Kind.PREEMPTED,
        Kind.FLUSHED,
        Kind.UNDONE,
        Kind.STORE_UNREACHABLE,
    }
)
#: Kinds after which another attempt would end the same way.
PERMANENT = frozenset({Kind.BAD_SPEC, Kind.BAD_DATA, Kind.DAMAGED, Kind.CONTRACT, Kind.STORE_UNSUITABLE})

_BY_STATUS_REASON: Mapping[str, Kind] = {
    "Evicted": Kind.EVICTED,
    "NodeLost": Kind.NODE_LOST,
    "NodeShutdown": Kind.NODE_SHUTDOWN,
    "Shutdown": Kind.NODE_SHUTDOWN,
    "Terminated": Kind.NODE_SHUTDOWN,
    "NodeAffinity": Kind.REJECTED,
    "UnexpectedAdmissionError": Kind.REJECTED,
    "Preempting": Kind.PREEMPTED,
    "DeadlineExceeded": Kind.DEADLINE_EXCEEDED,
}
_OUT_OF = "OutOf"  # OutOfcpu, OutOfmemory, OutOfpods, ...

_BY_EXIT: Mapping[int, Kind] = {
    ExitCode.FLUSHED: Kind.FLUSHED,
    ExitCode.SUPERSEDED: Kind.SUPERSEDED,
    ExitCode.STORE_UNREACHABLE: Kind.STORE_UNREACHABLE,
    ExitCode.BAD_SPEC: Kind.BAD_SPEC,
    ExitCode.BAD_DATA: Kind.BAD_DATA,
    ExitCode.DAMAGED: Kind.DAMAGED,
    ExitCode.CONTRACT: Kind.CONTRACT,
    ExitCode.STORE_UNSUITABLE: Kind.STORE_UNSUITABLE,
}
#: Exit codes of a container after a deletion of its pod, if it does not flush in time or has no handler yet.
_DELETION_SIGNALS = frozenset({_SIGNAL_BASE + signal.SIGTERM, _SIGNAL_BASE + signal.SIGKILL})

_REMEDIES: Mapping[str, str] = {
    "ErrImagePull": "check spec.image, and the pull secrets in the pod template",
    "ImagePullBackOff": "check spec.image, and the pull secrets in the pod template",
    "InvalidImageName": "correct spec.image",
    "ErrImageNeverPull": "load the image onto the node, or change imagePullPolicy in the pod template",
    "CreateContainerConfigError": "create the Secret or ConfigMap that the message names",
    "CreateContainerError": "correct the pod template",
    "RunContainerError": "correct the pod template",
    "CrashLoopBackOff": "see the container's log",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A pod that is lost or terminating.

    ended: whether the process has ended, or the pod is gone, so that no flush can follow.
    save, anchor: those that it flushed.
    problem: the problem that the process itself reported.
    reason: the process's reason, or else that of Kubernetes.
    unprompted: whether the process was ended by SIGTERM although nothing deletes its pod, as by a failing probe.
    """

    kind: Kind
    reason: str
    message: str
    ended: bool
    exit_code: int | None = None
    save: SaveRef | None = None
    anchor: AnchorRef | None = None
    problem: Problem | None = None
    unprompted: bool = False

    @property
    def counts_as_restart(self) -> bool:
        """True if it counts towards the restart limit."""
        return self.kind not in FREE

    @property
    def permanent(self) -> bool:
        """True if another attempt would end the same way."""
        return self.kind in PERMANENT


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run yet, for a condition. It is not a failure."""

    reason: str
    message: str
    remedy: str


def classify(pod: PodView | None) -> Failure | Trouble | None:
    """Classify the failure of a known pod; None if it starts, runs, or is a trainer that finished."""
    if pod is None:
        return _vanished()
    end = pod.container if pod.role == "trainer" else None
    if end and end.kind == "Terminated" and end.exit_code == ExitCode.OK and end.reason != OOM_KILLED:
        return None  # a trainer that has trained everything
    return _by_cluster(pod) or _terminated(pod) or _leaving(pod) or _trouble(pod)


def failure_of(pod: PodView | None) -> Failure | None:
    """The failure of a known pod, if it has failed."""
    happened = classify(pod)
    return happened if isinstance(happened, Failure) else None


def hung(reporters: tuple[str, ...], same_node: str = "") -> Failure:
    """The failure of a member that its peers get no heartbeats of while its pod runs.

    reporters: the peers, such as trainer/0; empty if no peer runs that could receive its heartbeats.
    same_node: an unresponsive member on the same node; empty if there is none.
    """
    message = f"no heartbeat reaches {', '.join(reporters)}" if reporters else "no peer runs to receive its heartbeats"
    if same_node:
        message = f"{message}; {same_node} on the same node is unresponsive, too"
    return Failure(Kind.HUNG, "HeartbeatLost", message, ended=False)


def restarted(pod: PodView) -> Failure:
    """The failure of a container that has ended and restarted in its pod."""
    end = _terminated(replace(pod, container=pod.last_end))
    return end or Failure(Kind.CRASHED, "Restarted", "the container ended", ended=False)


def _vanished() -> Failure:
    return Failure(Kind.VANISHED, "Vanished", "the pod is gone, and its end was not observed", ended=True)


def _by_cluster(pod: PodView) -> Failure | None:
    """Lines 1 and 2. Such pods may have no container status."""
    # The condition alone is not a failure, because a refused eviction leaves it on a healthy pod.
    if pod.disruption and (pod.ended or pod.phase == "Failed" or pod.deleting_until is not None):
        message = pod.message or f"the pod is disrupted: {pod.disruption}"
        return _with_container(Kind.DISRUPTION, pod.disruption, message, pod)
    kind = Kind.REJECTED if pod.reason.startswith(_OUT_OF) else _BY_STATUS_REASON.get(pod.reason)
    if kind is None:
        return None
    return _with_container(kind, pod.reason, pod.message or f"the pod was ended: {pod.reason}", pod)


def _terminated(pod: PodView) -> Failure | None:
    """Line 3: by the container's reason, then by its exit code."""
    container = pod.container
    if container is None or container.kind != "Terminated":
        return None
    if container.reason == OOM_KILLED:  # seen with exit codes 137 and 0
        message = "the container ran out of memory; raise its limit in the pod template"
        return _with_container(Kind.OOM_KILLED, container.reason, message, pod)
    kind, message = _exit(container.exit_code, deleting=pod.deleting_until is not None)
    if container.message.startswith(_PROBLEM):  # a kubelet cut it, or else it replaces this message
        message = f"{message}: {container.message[:_SHOWN_CHARS]}"
    failure = _with_container(kind, container.reason or kind, message, pod)
    problem = failure.problem
    if problem is None:
        return failure
    return replace(failure, reason=problem.reason, message=f"{problem.message} ({problem.remedy})")


def _leaving(pod: PodView) -> Failure | None:
    """Lines 3 and 6 for a pod without a container status: one that failed, or is being deleted."""
    if pod.phase == "Failed":
        why = _blocked_by(pod.blocking_container) if pod.blocking_container is not None else "the pod failed"
        return Failure(Kind.CRASHED, pod.reason or "Failed", pod.message or why, ended=pod.ended)
    if pod.deleting_until is None:
        return None
    # The API server marks such a pod and removes it at once, so a pass may or may not see the mark.
    if pod.deletion_grace_s == 0:
        return _vanished()
    if pod.phase == "Unknown":
        return Failure(Kind.NODE_LOST, "NodeLost", "the pod's node does not answer", ended=False)
    return Failure(Kind.DELETED, "Deleted", "the pod is being deleted", ended=False)


def _exit(code: int | None, *, deleting: bool) -> tuple[Kind, str]:
    """The kind and the message of a process's end. The exit code 128 + n of a shell stands for signal n."""
    if code is None:
        return Kind.CRASHED, "the process ended, and its exit code is unknown"
    name = next((one.name for one in signal.Signals if one == code - _SIGNAL_BASE), "")
    kind = _BY_EXIT.get(code, Kind.KILLED if name else Kind.CRASHED)
    if code in _DELETION_SIGNALS and deleting:
        kind = Kind.DELETED
    return kind, f"the process was killed by {name}" if name else f"the process ended with exit code {code}"


def _with_container(kind: Kind, reason: str, message: str, pod: PodView) -> Failure:
    """A failure with the exit code, save and problem from the main container's termination."""
    container = pod.container
    if container is None or container.kind != "Terminated":
        return Failure(kind, reason, message, ended=pod.ended)
    flushed = container.exit_code == ExitCode.FLUSHED
    return Failure(
        kind,
        reason,
        message,
        ended=True,
        exit_code=container.exit_code,
        save=document(SaveRef, container.message) if flushed else None,
        anchor=document(AnchorRef, container.message) if flushed else None,
        problem=None if flushed else document(Problem, container.message),
        unprompted=kind is Kind.FLUSHED and pod.deleting_until is None,
    )


def document(cls: type[T], text: str) -> T | None:
    """A document from a termination message; None for anything else, such as the output of a crash."""
    try:
        return from_json(cls, text)
    except ContractError:
        return None


def _blocked_by(container: BlockingContainer) -> str:
    ended = "" if container.exit_code is None else f" (it ended with exit code {container.exit_code})"
    return f"container {container.name}: {container.message or container.reason}{ended}"


def _trouble(pod: PodView) -> Trouble | None:
    """Line 4."""
    waiting = pod.container if pod.container is not None and pod.container.kind == "Waiting" else None
    if waiting is not None and waiting.reason not in STARTING:
        remedy = _REMEDIES.get(waiting.reason, "correct the pod template")
        return Trouble(waiting.reason, waiting.message or waiting.reason, remedy)
    if pod.phase == "Pending" and pod.blocking_container is not None:
        remedy = "correct that container in the pod template, or see its log"
        return Trouble(pod.blocking_container.reason, _blocked_by(pod.blocking_container), remedy)
    if pod.gates:
        message = f"scheduling waits for the gates {', '.join(pod.gates)}"
        return Trouble("SchedulingGated", message, "see the controller that removes them; more capacity does not help")
    if pod.unschedulable:
        return Trouble(
            UNSCHEDULABLE, pod.unschedulable, "add capacity, or change resources and selectors in the pod template"
        )
    return None
