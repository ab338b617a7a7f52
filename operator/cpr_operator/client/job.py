"""A CPRJob as the API server gives it, what its words mean, and what a request about it ends in.

A client that is older than the operator still says what it understands: the typed `spec` and `status` are read when
they are asked for, and everything else works on the plain object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_operator.api.model import parse_time
from cpr_operator.api.spec import API_VERSION, KIND, CPRJobSpec
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.api.validate import InvalidSpecError, parse_spec, parse_status, validate

# What a request of a user ends in: one sentence, with the remedy.
#
# ClientError
# ├── NoObjectError      there is no object of this name
# ├── UnavailableError   the API server cannot answer now; the same request may succeed later
# ├── TookTooLongError   what was waited for did not come in time
# └── CommandError       a command in a pod failed


class ClientError(Exception):
    """What cannot be done, and what to do about it."""


class NoObjectError(ClientError):
    """The cluster knows CPRJobs, and there is none of this name."""


class UnavailableError(ClientError):
    """The API server cannot be reached, or answers that it cannot serve now."""


class TookTooLongError(ClientError):
    """What was waited for did not come in time."""


class CommandError(ClientError):
    """A command in a pod that failed; `errors` is the end of its standard error."""

    def __init__(self, code: int, errors: str) -> None:
        super().__init__(f"the command ended with exit code {code}: {errors}")
        self.code = code
        self.errors = errors


Object = dict[str, Any]

#: Of a job's metadata, what its author wrote. The rest is the cluster's.
OWN_METADATA = ("name", "namespace", "labels", "annotations")
#: Phases without pods, in which a job whose `suspend` is true stays.
AT_REST = frozenset({"Pending", "Suspended"})


@dataclass(frozen=True, slots=True)
class Job:
    """One CPRJob. `document` is the whole object as plain JSON values."""

    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.document["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """What tells it from earlier jobs of the same name."""
        return str(self.document["metadata"]["uid"])

    @property
    def created(self) -> float:
        """When it was created, in seconds since the epoch."""
        return _seconds(self.document["metadata"]["creationTimestamp"])

    @property
    def spec(self) -> CPRJobSpec:
        """What was asked for. Raises InvalidSpecError if another version of cprjob wrote it."""
        return parse_spec(self.document["spec"])

    @property
    def status(self) -> Status:
        """How it stands. Raises InvalidStatusError if another version of the operator wrote it."""
        return parse_status(self.document.get("status") or {})

    @property
    def phase(self) -> str:
        """A one-word summary; empty before the operator has seen the job."""
        return phase(self.document)

    @property
    def over(self) -> bool:
        """Whether nothing happens any more until somebody changes the job: see `is_over`."""
        return is_over(self.document)


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
        """The event in one line."""
        return f"{'!' if self.type == 'Warning' else '·'} {self.reason}: {self.message}"


def phase(job: Mapping[str, Any]) -> str:
    """The phase of a plain object; empty before the operator has seen the job."""
    return str((job.get("status") or {}).get("phase", ""))


def rests(job: Mapping[str, Any]) -> bool:
    """Whether the job is suspended by its own `suspend`, and all its pods are gone."""
    return bool(job["spec"].get("suspend")) and phase(job) in {"", *AT_REST}


def is_over(job: Mapping[str, Any]) -> bool:
    """Whether the job succeeded, failed, or rests. A job that the operator suspended goes on by itself."""
    return phase(job) in TERMINAL_PHASES or rests(job)


def to_create(document: Any) -> Object:
    """What of a document is to be created: without what the cluster wrote. Raises InvalidSpecError.

    So what `kubectl get cprjob NAME -o yaml` printed can be submitted again.
    """
    invalid = validate(document)
    if invalid:
        raise InvalidSpecError(invalid)
    own = {key: value for key, value in document["metadata"].items() if key in OWN_METADATA}
    written = {"apiVersion": API_VERSION, "kind": KIND, "metadata": own, "spec": document["spec"]}
    plain: Object = json.loads(json.dumps(written, default=str))  # a mapping may have dates
    return plain


def events_of(items: list[Object], uid: str) -> tuple[Event, ...]:
    """The events about the job of this uid, oldest first. Within a second the server's own order counts."""
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
    meta = event["metadata"]
    return _seconds(event.get("lastTimestamp") or event.get("eventTime") or meta["creationTimestamp"])


def _seconds(timestamp: str) -> float:
    return float(str(parse_time(timestamp)))
