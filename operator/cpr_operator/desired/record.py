"""The record of a job for its store: the CPRJob object with a status and events, encoded for an annotation of a pod."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cpr_contract.codec import pack, to_json
from cpr_contract.records import MAX_RECORD_BYTES, MOST_EVENTS, JobRecord, RecordedEvent
from cpr_operator.api.base import format_time
from cpr_operator.api.cprjob_spec import API_VERSION, KIND
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import JobView

#: Parts of a spec that are not recorded: templates may contain values of variables that only members need.
_TEMPLATED = ("shards", "trainers")
#: Parts of a member's entry in the status that no report of a deleted job needs.
_ADDRESS = frozenset({"host", "node", "pod", "portBase", "startedAt", "uid"})


@dataclass(frozen=True, slots=True)
class Recording:
    """A job as it was read, and the events of this operator about it, oldest first."""

    view: JobView
    events: tuple[RecordedEvent, ...] = ()


def recorded(event: Event, now: float) -> RecordedEvent:
    """Return an event that happens now, for a record."""
    return RecordedEvent(now, event.type, event.reason, event.message, event.key)


def packed_record(recording: Recording, status: Mapping[str, Any], events: Iterable[Event], now: float) -> str:
    """Return the encoded record of a job with this status, and with these events after its earlier ones.

    Parts of a record that is too long are left out: the addresses of members, then its older events, then the spec.
    Empty if it is too long even so.
    """
    every = (*recording.events, *(recorded(event, now) for event in events))
    texts = map(pack, map(to_json, _records(recording.view, status, every[-MOST_EVENTS:], now)))
    return next((text for text in texts if len(text) <= MAX_RECORD_BYTES), "")


def _records(
    view: JobView, status: Mapping[str, Any], events: tuple[RecordedEvent, ...], now: float
) -> Iterator[JobRecord]:
    """Yield the record, then shorter forms of it."""
    spec = {
        name: {key: part for key, part in value.items() if key != "template"}
        if name in _TEMPLATED and isinstance(value, Mapping)
        else value
        for name, value in view.spec.items()
    }
    yield JobRecord(view.uid, now, _object(view, spec, status), events)
    # Addresses take most of the record of a thousand members, and compress badly.
    members = {role: [_without_address(each) for each in status.get(role, ())] for role in _TEMPLATED}
    status = {**status, **members}
    while events:
        yield JobRecord(view.uid, now, _object(view, spec, status), events)
        events = events[-(len(events) // 2) :] if len(events) > 1 else ()
    yield JobRecord(view.uid, now, _object(view, spec, status), ())
    yield JobRecord(view.uid, now, _object(view, {}, status), ())


def _without_address(member: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in member.items() if name not in _ADDRESS}


def _object(view: JobView, spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    # Without annotations: kubectl writes the whole manifest into one.
    metadata = {
        "name": view.name,
        "namespace": view.namespace,
        "uid": view.uid,
        "creationTimestamp": format_time(view.created),
        "labels": dict(view.labels),
    }
    found = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec, "status": status}
    return json.dumps(found, separators=(",", ":"))
