"""`Cluster`: all operations of the controller on a cluster, with Kubernetes' semantics and errors.

ClusterError
├── NotFoundError          the object does not exist (any more)
├── ConflictError          written since it was read: read again
├── AlreadyExistsError     a create found an object of that name
├── RefusedError           quota, admission or validation refused; the message is for users
│   └── TerminatingError   the namespace is being deleted: nothing can be created in it any more
└── UnavailableError       the API server does not answer: try again later
    └── BusyError          requests of a higher priority use the whole limit
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cpr_operator.cluster.certificates import PodTLS
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
    """No answer, or a request to try again later."""


class BusyError(UnavailableError):
    """There is no capacity for a request of `Priority.REGULAR` now."""


class Priority(enum.IntEnum):
    """The order of requests when there are more than the API server should take: the lowest number goes first."""

    #: Training is interrupted: creates and deletes, and the status before them.
    RECOVERY = 0
    #: Rosters that name the replacements of pods.
    ROSTER = 1
    #: The job has begun and does not train yet, or has ended.
    START = 2
    #: The job has not begun.
    BEGIN = 3
    #: The job trains without changes. Such a request never waits; the next pass repeats it.
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
    """Annotations and labels to set on the pod of this uid. All others stay."""

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

        With `cached` the answer may be an older version that a watch has shown: no write succeeds under it.
        """
        ...

    async def list_jobs(self, namespaces: tuple[str, ...]) -> tuple[JobView, ...]:
        """All jobs of these namespaces; of all namespaces if none is named."""
        ...

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:
        """All pods with the job's label, also those of an earlier job of the same name.

        `cached` costs the server much less, and the answer may be outdated: a missing pod may exist.
        """
        ...

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        """Replace the status, if the job is still at `job.resource_version`. Raises ConflictError, NotFoundError."""
        ...

    async def set_finalizers(self, job: JobView, finalizers: tuple[str, ...]) -> JobView:
        """Replace the finalizers under the same condition. Raises ConflictError, NotFoundError."""
        ...

    async def delete_job(self, job: JobView) -> None:
        """Delete the job of this uid, in the background. Raises NotFoundError."""
        ...

    async def check_pod(self, manifest: Manifest) -> None:
        """A server-side dry run of a create, if the server supports one. Raises RefusedError with its message."""
        ...

    async def create_pod(self, manifest: Manifest) -> PodView:
        """Raises AlreadyExistsError, RefusedError; in a namespace that is being deleted, TerminatingError."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        """Delete the pod of that uid; a deleted pod, or another one of that name, is success."""
        ...

    async def patch_pod(self, namespace: str, patch: PodPatch) -> None:
        """Set annotations and labels of a pod, all at once. Raises NotFoundError."""
        ...

    async def create_secret(self, manifest: Manifest) -> None:
        """Create; an existing one is success (it is never read back). Raises RefusedError."""
        ...

    async def has_secret(self, manifest: Manifest) -> bool:
        """Return True if a Secret of that name exists, by a dry run of its creation.

        Raises RefusedError if the answer does not depend on its existence.
        """
        ...

    async def create(self, manifest: Manifest) -> None:
        """Create a CertificateRequest; an existing one of that name is success.

        Raises RefusedError, and NotFoundError if the server has no such kind.
        """
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply of a PodDisruptionBudget, NetworkPolicy or Workload. Raises RefusedError."""
        ...

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Read an object of these kinds, or of Kueue's cluster-scoped ones (`namespace` is empty); None if absent.

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
        """Delete such an object once it has no finalizer; absence is success."""
        ...

    async def emit(self, job: JobView, event: Event) -> None:
        """Publish an event; an existing event of the same key is success. Raises RefusedError."""
        ...

    async def newest_warning(self, pod: PodView) -> PodWarning | None:
        """The newest Warning event of the pod, such as a volume that cannot be mounted. Raises RefusedError."""
        ...

    async def fetch_report(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        """The pod's `/status` answer, None if it does not answer in time, or with more than `max_bytes`.

        `recorded` is sent to the pod: what the job's status holds (`cpr_contract.reports.Recorded`, as JSON), or empty.
        `tls`: the connection to a pod of an encrypted job. A pod with another certificate does not answer.
        """
        ...

    async def send_roster(
        self, pod: PodView, roster: str, signature: str, deadline_s: float, tls: PodTLS | None = None
    ) -> None:
        """Send the pod its roster over HTTP. Failures are logged alone: the pod reads the annotation as well."""
        ...

    async def reaches(self, pod: PodView) -> bool:
        """Return True if the pod's kernel answers: it does even if its process is busy or hangs."""
        ...
