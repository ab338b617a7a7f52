"""CPRJobs by name: what a user does with a job on a cluster, and what its members print."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from cpr_contract import env
from cpr_operator.api.yaml_text import read_value
from cpr_operator.client.connection import Connection, Place
from cpr_operator.client.job import (
    ClientError,
    Event,
    Job,
    NoObjectError,
    Object,
    TookTooLongError,
    UnavailableError,
    events_of,
    is_over,
    to_create,
)
from cpr_operator.client.tool import Tool, opened_tool

Role = Literal["trainer", "shard"]

LOOK_EVERY_S = 1.0
#: An API server that does not answer for so long is not waited for any more: an upgrade takes less.
PATIENCE_S = 120.0


class Client:
    """One cluster, with the user's own rights, as a context manager or closed by `close`.

    kubeconfig: a file; else KUBECONFIG, then ~/.kube/config, then in a pod its service account. context: one of its
    contexts; else its current one. namespace: that of all jobs; else a manifest's own, then the context's.

    All methods raise ClientError, whose message says what to do; NoObjectError if there is no such job, and
    UnavailableError if the API server cannot answer now.
    """

    def __init__(
        self, *, kubeconfig: str | Path | None = None, context: str | None = None, namespace: str | None = None
    ) -> None:
        self._given = namespace
        self._connection = Connection(Place(namespace, context, None if kubeconfig is None else str(kubeconfig)))

    @property
    def namespace(self) -> str:
        """Where jobs are looked for."""
        return self._connection.namespace

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, job: str | Path | Mapping[str, Any]) -> Job:
        """Create a job and return it at once: a manifest as plain values, or the path of a YAML file with one.

        Raises InvalidSpecError, which names every wrong field, before the cluster is asked; OSError and yaml.YAMLError
        for a file that cannot be read.
        """
        document = job if isinstance(job, Mapping) else read_value(Path(job).read_bytes())
        manifest = to_create(document)
        namespace = self._given or manifest["metadata"].get("namespace") or self.namespace
        manifest["metadata"]["namespace"] = namespace
        return Job(self._connection.create(namespace, manifest))

    def get(self, name: str) -> Job:
        """One job."""
        found = self._connection.find(self.namespace, name)
        if found is None:
            raise NoObjectError(
                f"there is no job {name} in the namespace {self.namespace}; `cprjob get` lists those that are"
            )
        return Job(found)

    def list(self, *, all_namespaces: bool = False) -> tuple[Job, ...]:
        """The jobs of the namespace, or of the whole cluster."""
        return tuple(map(Job, self._connection.jobs(None if all_namespaces else self.namespace)))

    def watch(self, name: str, every_s: float = LOOK_EVERY_S) -> Iterator[Job]:
        """The job again and again, the last time once it is over.

        A job that succeeded or failed is over, and so is one that rests suspended. An API server that cannot answer is
        asked for two more minutes.
        """
        answered = time.monotonic()
        while True:
            try:
                job = self.get(name)
            except UnavailableError:
                if time.monotonic() - answered > PATIENCE_S:
                    raise
            else:
                answered = time.monotonic()
                yield job
                if is_over(job.document):
                    return
            time.sleep(every_s)

    def wait(
        self, name: str, *, until: Callable[[Job], bool] = lambda job: job.over, timeout_s: float | None = None
    ) -> Job:
        """Wait until the job is over, or until `until` is true of it; return it as it is then.

        Raises TookTooLongError after `timeout_s`, and if the job is over without `until` ever being true.
        """
        began = time.monotonic()
        for job in self.watch(name):
            if until(job):
                return job
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise TookTooLongError(f"{name} is {job.phase or 'not seen'} after {timeout_s:g} s; wait longer")
        raise TookTooLongError(f"{name} is {job.phase}, and nothing more happens; change the job, or wait for another")

    def logs(
        self,
        name: str,
        *,
        role: Role = "trainer",
        index: int | None = None,
        follow: bool = False,
        since_s: float | None = None,
    ) -> Iterator[str]:
        """The lines of a member's newest pod; with `follow` those of its successors too, until the job ends.

        index: that of the member; None is the leader, or shard 0. since_s: only lines so young, in seconds.
        """
        if index is None:
            leader = (self.get(name).document.get("status") or {}).get("leader")
            index = leader if role == env.ROLE_TRAINER and leader is not None else 0
        member = Member(self.namespace, name, role, index)
        span = Span(None if since_s is None else datetime.now(UTC) - timedelta(seconds=since_s))
        return (follow_log if follow else read_log)(self._connection, member, span)

    def events(self, name: str) -> tuple[Event, ...]:
        """Return the events of the job, oldest first. Kubernetes keeps events for an hour."""
        job = self.get(name)
        return events_of(self._connection.events(self.namespace, name), job.uid)

    def suspend(self, name: str) -> Job:
        """Have the job save everything and give its pods back; it stays, and loses nothing."""
        return self._change(name, {"suspend": True})

    def resume(self, name: str) -> Job:
        """Go on with a suspended job."""
        return self._change(name, {"suspend": False})

    def scale(self, name: str, *, trainers: int | None = None, shards: int | None = None) -> Job:
        """Change how many members the job has: trainers at any time, shards while it is suspended."""
        wanted = {"trainers": trainers, "shards": shards}
        return self._change(name, {group: {"replicas": count} for group, count in wanted.items() if count is not None})

    def delete(self, name: str) -> None:
        """Delete the job; its saves go only with `snapshots.deleteWithJob`."""
        self.get(name)
        self._connection.delete(self.namespace, name)

    def kill(self, name: str, role: Role, index: int, *, drain: bool = False) -> str:
        """Delete a member's pod, as a failure or, with `drain`, as a node that is drained; return the pod's name.

        A killed pod has no time to save anything. A drained one saves first, and loses nothing.
        """
        meta = self._pod_of(name, role, index)["metadata"]
        self._connection.delete_pod(self.namespace, meta["name"], meta["uid"], None if drain else 0)
        return str(meta["name"])

    def execute(self, name: str, role: Role, index: int, command: Sequence[str]) -> Iterator[bytes]:
        """Run a command in a member's pod, and yield what it writes to its standard output.

        Raises CommandError if its exit code is not 0.
        """
        meta = self._pod_of(name, role, index)["metadata"]
        return Tool(self._connection, self.namespace, meta["name"]).run(command)

    def tool(self, pod: Mapping[str, Any]) -> AbstractContextManager[Tool]:
        """Create a pod of your own, with the manifest `pod`; it runs commands, and is deleted with the context."""
        return opened_tool(self._connection, dict(pod))

    def _pod_of(self, name: str, role: Role, index: int) -> Object:
        """The pod of a member that the job has."""
        job = self.get(name)
        members = (job.spec.shards if role == env.ROLE_SHARD else job.spec.trainers).replicas
        if not 0 <= index < members:
            raise ClientError(f"there is no {role}/{index}; {name} has {members} {role}s, counted from 0")
        pod = newest(self._connection, Member(self.namespace, name, role, index))
        if pod is None:
            raise NoObjectError(f"{role}/{index} of {name} has no pod that runs now; try again when it is Ready")
        return pod

    def _change(self, name: str, spec: Mapping[str, Any]) -> Job:
        return Job(self._connection.change(self.namespace, name, {"spec": dict(spec)}))


# What the members of a job print. A member that is replaced goes on in its next pod.


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
    """From when, and to when; naive times are local ones, as all of Python's."""

    since: datetime | None = None
    until: datetime | None = None


def read_log(connection: Connection, member: Member, span: Span) -> Iterator[str]:
    """The lines of the newest pod that has started. Raises ClientError."""
    pod = newest(connection, member)
    if pod is None:
        raise ClientError(
            f"{member.role}/{member.index} of {member.namespace}/{member.job} has no pod with a log; "
            "see how the job stands, or follow the log, which waits for a pod"
        )
    yield from _lines(connection, member, pod, span, follow=False)


def follow_log(connection: Connection, member: Member, span: Span) -> Iterator[str]:
    """The same, then what it prints further, and its successors, until the job ends. Raises ClientError."""
    told = None
    while True:
        job = connection.find(member.namespace, member.job)  # before its pods: the last one is not missed
        pod = newest(connection, member)
        if pod is not None and pod["metadata"]["uid"] != told:
            told = pod["metadata"]["uid"]
            try:
                yield from _lines(connection, member, pod, span, follow=True)
            except ClientError:  # a stream may break when its pod goes
                left = newest(connection, member)
                if left is not None and left["metadata"]["uid"] == told and left["status"]["phase"] == "Running":
                    raise
        elif job is None or is_over(job) or (span.until is not None and _aware(span.until) < _now()):
            return
        else:
            time.sleep(POLL_S)


def newest(connection: Connection, member: Member) -> Object | None:
    """The pod of the highest incarnation that has started; None if there is none."""
    labels = {env.LABEL_JOB: member.job, env.LABEL_ROLE: member.role, env.LABEL_INDEX: member.index}
    started = (pod for pod in connection.pods(member.namespace, labels) if pod["status"].get("phase") != "Pending")
    return max(started, key=lambda pod: int(pod["metadata"]["labels"][env.LABEL_INCARNATION]), default=None)


def _lines(connection: Connection, member: Member, pod: Object, span: Span, *, follow: bool) -> Iterator[str]:
    since_s = None if span.since is None else max(1, math.ceil((_now() - _aware(span.since)).total_seconds()))
    lines = connection.log(
        member.namespace,
        pod["metadata"]["name"],
        follow=follow,
        since_seconds=since_s,
        timestamps=span.until is not None,
    )
    return lines if span.until is None else before(lines, _aware(span.until))


def before(lines: Iterator[str], until: datetime) -> Iterator[str]:
    """Lines up to a time, without the times that they begin with. The API server knows no end."""
    for line in lines:
        when, _, text = line.partition(" ")
        if datetime.fromisoformat(when) > until:
            return
        yield text


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _now() -> datetime:
    return datetime.now(UTC)
