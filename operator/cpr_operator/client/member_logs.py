"""Logs of a job's members. A follower continues with the next pod when a member is replaced."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from cpr_contract import env
from cpr_operator.client.job import Job, Object
from cpr_operator.client.kube_connection import ClientError, KubeConnection

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of one role of a job."""

    namespace: str
    job: str
    role: str
    index: int


@dataclass(frozen=True, slots=True)
class Span:
    """The first and the last time of lines to read; naive times are local ones."""

    since: datetime | None = None
    until: datetime | None = None


def read_log(connection: KubeConnection, member: Member, span: Span) -> Iterator[str]:
    """Yield the lines of the newest pod that has started. Raises ClientError."""
    pod = newest(connection, member)
    if pod is None:
        raise ClientError(
            f"{member.role}/{member.index} of {member.namespace}/{member.job} has no pod with a log; "
            "see how the job stands, or follow the log, which waits for a pod"
        )
    yield from _lines(connection, member, pod, span, follow=False)


def follow_log(connection: KubeConnection, member: Member, span: Span) -> Iterator[str]:
    """Yield the lines of the newest pod, as they are printed, and of later pods until the job ends.

    Raises ClientError.
    """
    read_uid = None
    while True:
        job = connection.find(member.namespace, member.job)  # before its pods, so that the last one is not missed
        pod = newest(connection, member)
        if pod is not None and pod["metadata"]["uid"] != read_uid:
            read_uid = pod["metadata"]["uid"]
            try:
                yield from _lines(connection, member, pod, span, follow=True)
            except ClientError:  # a stream may break when its pod goes
                left = newest(connection, member)
                if left is not None and left["metadata"]["uid"] == read_uid and left["status"]["phase"] == "Running":
                    raise
        elif job is None or Job(job).over or (span.until is not None and _aware(span.until) < _now()):
            return
        else:
            time.sleep(POLL_S)


def newest(connection: KubeConnection, member: Member) -> Object | None:
    """Return the pod of the highest incarnation that has started, or None."""
    labels = {env.LABEL_JOB: member.job, env.LABEL_ROLE: member.role, env.LABEL_INDEX: member.index}
    started = (pod for pod in connection.pods(member.namespace, labels) if pod["status"].get("phase") != "Pending")
    return max(started, key=lambda pod: int(pod["metadata"]["labels"][env.LABEL_INCARNATION]), default=None)


def before(lines: Iterator[str], until: datetime) -> Iterator[str]:
    """Yield the lines up to a time, without their time stamps. The API server has no option for an end."""
    for line in lines:
        when, _, text = line.partition(" ")
        if datetime.fromisoformat(when) > until:
            return
        yield text


def _lines(connection: KubeConnection, member: Member, pod: Object, span: Span, *, follow: bool) -> Iterator[str]:
    since_s = None if span.since is None else max(1, math.ceil((_now() - _aware(span.since)).total_seconds()))
    lines = connection.log(
        member.namespace,
        pod["metadata"]["name"],
        follow=follow,
        since_seconds=since_s,
        timestamps=span.until is not None,
    )
    return lines if span.until is None else before(lines, _aware(span.until))


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _now() -> datetime:
    return datetime.now(UTC)
