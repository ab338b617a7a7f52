"""CPRJobs and events as the API server returns them.

`Job.spec` and `Job.status` are parsed on access, and everything else reads the plain object. A client that is older
than the operator can therefore still show a job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_operator.api.base import epoch
from cpr_operator.api.cprjob_spec import API_VERSION, KIND, CPRJobSpec
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.api.terminal_text import event_line
from cpr_operator.api.validate import parse_document, parse_spec, parse_status

Object = dict[str, Any]

#: The metadata of a job that its author wrote; the cluster adds more.
OWN_METADATA = ("name", "namespace", "labels", "annotations")
#: Phases in which a job with `suspend: true` has no pods and stays as it is.
WITHOUT_PODS = frozenset({"", "Pending", "Suspended"})


@dataclass(frozen=True, slots=True)
class Job:
    """One CPRJob. `document` is the whole object as plain JSON values."""

    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return `metadata.name`."""
        return str(self.document["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Return `metadata.namespace`."""
        return str(self.document["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """Return `metadata.uid`, in which a job differs from earlier jobs of its name."""
        return str(self.document["metadata"]["uid"])

    @property
    def created(self) -> float:
        """Return the time of creation, in seconds since the epoch."""
        return epoch(self.document["metadata"]["creationTimestamp"]) or 0.0

    @property
    def spec(self) -> CPRJobSpec:
        """Return the parsed spec. Raises InvalidSpecError if another version of cprjob wrote it."""
        return parse_spec(self.document["spec"])

    @property
    def status(self) -> Status:
        """Return the parsed status. Raises InvalidStatusError if another version of the operator wrote it."""
        return parse_status(self.document.get("status") or {})

    @property
    def phase(self) -> str:
        """Return the phase; empty before the operator has seen the job."""
        return str((self.document.get("status") or {}).get("phase", ""))

    @property
    def suspended(self) -> bool:
        """Return whether the job is suspended by its own `suspend`, and all its pods are gone."""
        return bool(self.document["spec"].get("suspend")) and self.phase in WITHOUT_PODS

    @property
    def over(self) -> bool:
        """Return whether the job succeeded, failed, or is suspended by its own `suspend`.

        A job that the operator suspended is not over, because the operator resumes it.
        """
        return self.phase in TERMINAL_PHASES or self.suspended


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about a job. `time` is in seconds since the epoch."""

    time: float
    type: str
    reason: str
    message: str
    uid: str

    @property
    def line(self) -> str:
        """Return the event in one line."""
        return event_line(self.type, self.reason, self.message)


def value_at(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path such as `status.progress.percent`; None if it is absent."""
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def to_create(document: Any) -> Object:
    """Return the part of a document to create, without fields that the cluster wrote. Raises InvalidSpecError.

    The output of `kubectl get cprjob NAME -o yaml` can therefore be submitted again.
    """
    parse_document(document)
    own = {key: value for key, value in document["metadata"].items() if key in OWN_METADATA}
    written = {"apiVersion": API_VERSION, "kind": KIND, "metadata": own, "spec": document["spec"]}
    plain: Object = json.loads(json.dumps(written, default=str))  # YAML may have parsed dates
    return plain


def events_of(items: list[Object], uid: str) -> tuple[Event, ...]:
    """Return the events about the job of this uid, oldest first. Within a second, resource versions give the order."""
    about = [each for each in items if each["involvedObject"].get("uid") == uid]
    ordered = sorted(about, key=lambda each: (_happened(each), int(each["metadata"].get("resourceVersion", 0))))
    return tuple(
        Event(
            time=_happened(each),
            type=each.get("type", "Normal"),
            reason=each.get("reason", ""),
            message=each.get("message", ""),
            uid=each["metadata"]["uid"],
        )
        for each in ordered
    )


def _happened(event: Mapping[str, Any]) -> float:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return epoch(stamp) or 0.0
