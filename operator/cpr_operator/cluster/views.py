"""What a pass sees: a job and its pods as plain values, the same for Kubernetes and for processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The state of the pod's main container, from `state`, or from `lastState` where only that is terminated."""

    kind: Literal["Waiting", "Running", "Terminated"]
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. Times are seconds since the epoch; `host` is its address, empty until it has one.

    `deleting_until` is deletionTimestamp (which already includes the grace), None while nobody deletes the pod.
    `deletion_grace_s` is 0 where it is deleted by force, or its kubelet is done with it.
    `disruption` is the reason of the condition DisruptionTarget=True, `unschedulable` the scheduler's message.
    `owner_uid` is the uid of the controlling CPRJob. `roster_version` is the one last written to its annotation,
    -1 if none. `ready` is the kubelet's condition Ready; processes of local mode have no kubelet that asks them.
    `job_uid` is its label of that name, which pods of version 0.1.0 lack.
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

    @property
    def ended(self) -> bool:
        """Whether its process is over. The container's word counts: a phase may be written without the kubelet."""
        if self.container is not None:
            return self.container.kind == "Terminated"
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class JobView:
    """A CPRJob object as read: `spec` and `status` are still plain JSON, validated by the caller."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: float
    deleting: bool
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
