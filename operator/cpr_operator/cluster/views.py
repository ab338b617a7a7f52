"""The inputs of a pass: a job and its pods as plain values, for Kubernetes and for local processes alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: How long after the end of its grace a pod that is being deleted counts as gone.
GRACE_SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The state of the pod's main container, from `state`, or from `lastState` if only that is terminated."""

    kind: Literal["Waiting", "Running", "Terminated"]
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. Times are seconds since the epoch.

    host: the pod's address, empty until it has one.
    deleting_until: deletionTimestamp, which includes the grace period; None if the pod is not being deleted.
    deletion_grace_s: 0 if the deletion is forced, or the kubelet has finished it.
    disruption: the reason of the condition DisruptionTarget=True.
    unschedulable: the scheduler's message.
    owner_uid: the uid of the controlling CPRJob.
    job_uid: the label of that name, which pods of version 0.1.0 lack.
    namespace: empty in local mode, where all pods are of one person.
    roster_version: the version last written to the roster's annotation; -1 if there is none.
    ready: the kubelet's condition Ready. In local mode no kubelet sets it.
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
    container: ContainerView | None = None
    roster_version: int = -1
    ready: bool = False
    job_uid: str = ""
    namespace: str = ""

    @property
    def ended(self) -> bool:
        """Whether the process has ended. The container's state decides, because not only the kubelet writes phases."""
        if self.container is not None:
            return self.container.kind == "Terminated"
        return self.phase in {"Succeeded", "Failed"}

    def is_stuck(self, now: float) -> bool:
        """Whether the pod's grace is over: it stays only because its node does not answer."""
        return self.deleting_until is not None and now >= self.deleting_until + GRACE_SLACK_S


@dataclass(frozen=True, slots=True)
class JobView:
    """A CPRJob object as read. `spec` and `status` are plain JSON; the caller validates them."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: float
    deleting: bool
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
