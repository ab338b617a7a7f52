"""`Cluster`: everything the controller can do to the world, with Kubernetes' semantics and errors.

ClusterError
├── NotFoundError          the object is not there (any more)
├── ConflictError          written since it was read: read again
├── AlreadyExistsError     a create met an object of that name
├── RefusedError           quota, admission or validation said no; `message` is for people
│   └── TerminatingError   the namespace is being deleted: nothing can be created in it any more
└── UnavailableError       the API server cannot be asked now: try again later
    └── BusyError          requests that are more urgent fill what the API server should take
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cpr_operator.cluster.views import JobView, PodView, PodWarning

Manifest = Mapping[str, Any]


class ClusterError(Exception):
    """Any refusal or failure of the cluster."""


class NotFoundError(ClusterError):
    """The object does not exist (any more)."""


class ConflictError(ClusterError):
    """The object was written since it was read."""


class AlreadyExistsError(ClusterError):
    """An object of that name exists."""


class RefusedError(ClusterError):
    """Quota, admission or validation refused the request."""


class TerminatingError(RefusedError):
    """The namespace is being deleted: nothing can be created in it any more."""


class UnavailableError(ClusterError):
    """No answer, or 'try again later'."""


class BusyError(UnavailableError):
    """There is no room for a request of `Priority.REGULAR` now."""


class Priority(enum.IntEnum):
    """Whose request goes first when there are more than the API server should take."""

    #: Training stands still: creates and deletes, and the status before them.
    RECOVERY = 0
    #: Pods are told who replaced whom.
    ROSTER = 1
    #: The job has begun and does not train yet, or has ended.
    START = 2
    #: The job has not begun.
    BEGIN = 3
    #: The job trains undisturbed. Such a request never waits; the next pass makes it again.
    REGULAR = 4


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the job. `key` makes it idempotent: the same key is the same event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class PodPatch:
    """Annotations and labels to set on the pod of this uid. Those that it does not name stay."""

    name: str
    uid: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


class Cluster(Protocol):
    """One cluster. All methods may raise `UnavailableError`; each names what else it raises."""

    def at(self, priority: Priority) -> Cluster:
        """The same cluster; requests made through it have this priority, not `BEGIN`. Reports have none."""
        ...

    async def get_job(self, namespace: str, name: str, *, cached: bool = False) -> JobView:
        """Read the job. Raises NotFoundError.

        `cached` asks the server only if no watch has shown the job, and may show the past: under an old version
        nothing can be written.
        """
        ...

    async def list_jobs(self, namespaces: tuple[str, ...]) -> tuple[JobView, ...]:
        """All jobs of these namespaces; of all namespaces if none is named."""
        ...

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:
        """All pods that carry the job's label, whoever owns them (an earlier job of the same name may).

        `cached` costs the server much less, and may show the past: a pod that is missing may be there.
        """
        ...

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        """Replace the status, if the job is still at `job.resource_version`. Raises ConflictError, NotFoundError."""
        ...

    async def set_finalizers(self, job: JobView, finalizers: tuple[str, ...]) -> JobView:
        """Replace the finalizers under the same condition. Raises ConflictError, NotFoundError."""
        ...

    async def delete_job(self, job: JobView) -> None:
        """Delete this very job (by uid), in the background. Raises NotFoundError."""
        ...

    async def check_pod(self, manifest: Manifest) -> None:
        """A server-side dry run of a create, as far as the server supports one. Raises RefusedError with its words."""
        ...

    async def create_pod(self, manifest: Manifest) -> PodView:
        """Raises AlreadyExistsError, RefusedError; in a namespace that is being deleted, TerminatingError."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        """Delete the pod of that uid; a pod that is gone, or another of that name, is success."""
        ...

    async def patch_pod(self, namespace: str, patch: PodPatch) -> None:
        """Set annotations and labels of a pod, all at once. Raises NotFoundError."""
        ...

    async def create_secret(self, manifest: Manifest) -> None:
        """Create; an existing one is success (it is never read back). Raises RefusedError."""
        ...

    async def has_secret(self, manifest: Manifest) -> bool:
        """Whether a Secret of that name exists, by a dry run of its creation.

        Raises RefusedError if the server's answer does not tell.
        """
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply of a PodDisruptionBudget, NetworkPolicy or Workload. Raises RefusedError."""
        ...

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """An object of one of these kinds, or of Kueue's that are the cluster's (`namespace` is empty); None if absent.

        Raises RefusedError.
        """
        ...

    async def merge_status(self, read: Manifest, status: Mapping[str, Any]) -> None:
        """Merge these fields into the status of an object, if it is still as `read`. None removes a field.

        Raises ConflictError, NotFoundError, RefusedError.
        """
        ...

    async def remove_finalizer(self, read: Manifest, finalizer: str) -> None:
        """Remove a finalizer of an object, if it is still as `read`. Raises the errors of `merge_status`."""
        ...

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete such an object, as soon as it has no finalizer; absence is success."""
        ...

    async def emit(self, job: JobView, event: Event) -> None:
        """Publish an event; an event of the same key that exists is success. Raises RefusedError."""
        ...

    async def newest_warning(self, pod: PodView) -> PodWarning | None:
        """The newest Warning event of the pod, such as a volume that cannot be mounted. Raises RefusedError."""
        ...

    async def fetch_report(self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "") -> bytes | None:
        """The pod's `/status` answer, None if it does not answer in time, or with more than `max_bytes`.

        `recorded` tells the pod what the job's status holds (`cpr_contract.reports.Recorded`, as JSON); empty: nothing.
        """
        ...

    async def send_roster(self, pod: PodView, roster: str, signature: str, deadline_s: float) -> None:
        """Send the pod its roster itself. Nothing is raised if it does not take it: the annotation tells it, too."""
        ...

    async def reaches(self, pod: PodView) -> bool:
        """Whether the pod's kernel answers: it does so however busy its process is, or if that hangs."""
        ...
