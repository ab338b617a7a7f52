"""`Client`: the operations of a user on the jobs of a cluster, by the names of the jobs."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self

from cpr_contract import env
from cpr_operator.api.yaml_text import read_value
from cpr_operator.client.job import Event, Job, Object, events_of, to_create
from cpr_operator.client.kube_connection import (
    ClientError,
    KubeConnection,
    NoObjectError,
    UnavailableError,
    WaitTimeoutError,
)
from cpr_operator.client.tool import Tool, opened_tool

Role = Literal["trainer", "shard"]

POLL_S = 1.0
#: `watch` ends if the API server is unavailable for longer than this. An upgrade of the server takes less.
UNAVAILABLE_S = 120.0


class Client:
    """One cluster, with the user's own rights, as a context manager or closed by `close`.

    kubeconfig: a file; else KUBECONFIG, then ~/.kube/config, then in a pod its service account. context: one of its
    contexts; else its current one. namespace: that of all jobs; else a manifest's own, then the context's.

    All methods raise ClientError with the remedy in its message; NoObjectError if there is no such job, and
    UnavailableError if the API server cannot answer now.
    """

    def __init__(
        self, *, kubeconfig: str | Path | None = None, context: str | None = None, namespace: str | None = None
    ) -> None:
        self._given = namespace
        self._connection = KubeConnection(None if kubeconfig is None else str(kubeconfig), context)

    def at(self, namespace: str) -> Self:
        """Return a client for jobs of another namespace, over the same connections."""
        other = copy.copy(self)
        other._given = namespace  # noqa: SLF001 -- its own class
        return other

    @property
    def namespace(self) -> str:
        """Return the namespace of all jobs: the given one, or that of the context."""
        return self._given or self._connection.namespace

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def submit(self, job: str | Path | Mapping[str, Any]) -> Job:
        """Create a job from a manifest as plain values, or from the path of a YAML file with one, and return it.

        Raises InvalidSpecError, which names every wrong field, before any request; OSError and yaml.YAMLError for a
        file that cannot be read.
        """
        document = job if isinstance(job, Mapping) else read_value(Path(job).read_bytes())
        manifest = to_create(document)
        namespace = self._given or manifest["metadata"].get("namespace") or self.namespace
        manifest["metadata"]["namespace"] = namespace
        return Job(self._connection.create(namespace, manifest))

    def get(self, name: str) -> Job:
        """Return one job."""
        found = self._connection.find(self.namespace, name)
        if found is None:
            raise NoObjectError(
                f"there is no job {name} in the namespace {self.namespace}; `cprjob get` lists those that are"
            )
        return Job(found)

    def list(self, *, all_namespaces: bool = False) -> tuple[Job, ...]:
        """Return the jobs of the namespace, or of the whole cluster."""
        return tuple(map(Job, self._connection.jobs(None if all_namespaces else self.namespace)))

    def watch(self, name: str, every_s: float = POLL_S) -> Iterator[Job]:
        """Yield the job every `every_s` seconds, the last time once it is over: succeeded, failed or suspended.

        Requests are retried for two minutes while the API server is unavailable.
        """
        answered = time.monotonic()
        while True:
            try:
                job = self.get(name)
            except UnavailableError:
                if time.monotonic() - answered > UNAVAILABLE_S:
                    raise
            else:
                answered = time.monotonic()
                yield job
                if job.over:
                    return
            time.sleep(every_s)

    def wait(
        self, name: str, *, until: Callable[[Job], bool] = lambda job: job.over, timeout_s: float | None = None
    ) -> Job:
        """Wait until the job is over, or until `until` returns true for it, and return it.

        Raises WaitTimeoutError after `timeout_s`, or if the job is over and `until` never returned true.
        """
        began = time.monotonic()
        for job in self.watch(name):
            if until(job):
                return job
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise WaitTimeoutError(f"{name} is {job.phase or 'not seen'} after {timeout_s:g} s; wait longer")
        raise WaitTimeoutError(f"{name} is {job.phase}, and nothing more happens; change the job, or wait for another")

    def logs(  # noqa: PLR0913 -- one parameter per option
        self,
        name: str,
        *,
        role: Role = "trainer",
        index: int | None = None,
        follow: bool = False,
        since_s: float | None = None,
        until: datetime | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a member's newest pod; with `follow` of its later pods too, until the job ends.

        index: None is the leader, or shard 0. since_s: only lines of the last seconds. until: only lines up to this
        time; a naive one is local.
        """
        found = self.get(name).document if index is None else self._connection.find(self.namespace, name)
        if index is None:
            leader = ((found or {}).get("status") or {}).get("leader")
            index = leader if role == env.ROLE_TRAINER and leader is not None else 0
        member = Member(self.namespace, name, role, index, "" if found is None else Job(found).uid)
        span = Span(None if since_s is None else datetime.now(UTC) - timedelta(seconds=since_s), until)
        return (follow_log if follow else read_log)(self._connection, member, span)

    def events(self, name: str) -> tuple[Event, ...]:
        """Return the events of the job, oldest first. Kubernetes keeps events for an hour."""
        job = self.get(name)
        return events_of(self._connection.events(self.namespace, name), job.uid)

    def suspend(self, name: str) -> Job:
        """Make the job save everything and release its pods. It loses nothing."""
        return self._change(name, {"suspend": True})

    def resume(self, name: str) -> Job:
        """Resume a suspended job."""
        return self._change(name, {"suspend": False})

    def scale(self, name: str, *, trainers: int | None = None, shards: int | None = None) -> Job:
        """Change the number of members: of trainers at any time, of shards while the job is suspended."""
        counts = {"trainers": trainers, "shards": shards}
        return self._change(name, {field: {"replicas": count} for field, count in counts.items() if count is not None})

    def delete(self, name: str) -> None:
        """Delete the job; its saves go only with `snapshots.deleteWithJob`."""
        self.get(name)
        self._connection.delete(self.namespace, name)

    def kill(self, name: str, role: Role, index: int, *, drain: bool = False) -> str:
        """Delete a member's pod and return its name.

        A killed pod has no time to save. With `drain` it saves first, as when its node is drained, and loses nothing.
        """
        meta = self._pod_of(name, role, index)["metadata"]
        self._connection.delete_pod(self.namespace, meta["name"], meta["uid"], None if drain else 0)
        return str(meta["name"])

    def execute(self, name: str, role: Role, index: int, command: Sequence[str]) -> Iterator[bytes]:
        """Run a command in a member's pod, and yield its standard output.

        Raises CommandError if its exit code is not 0.
        """
        meta = self._pod_of(name, role, index)["metadata"]
        return Tool(self._connection, self.namespace, meta["name"]).run(command)

    def tool(self, pod: Mapping[str, Any]) -> AbstractContextManager[Tool]:
        """Create a pod from the manifest `pod` to run commands in it; leaving the context deletes it."""
        return opened_tool(self._connection, dict(pod))

    def _pod_of(self, name: str, role: Role, index: int) -> Object:
        """Return the newest pod of a member."""
        job = self.get(name)
        members = (job.spec.shards if role == env.ROLE_SHARD else job.spec.trainers).replicas
        if not 0 <= index < members:
            raise ClientError(f"there is no {role}/{index}; {name} has {members} {role}s, counted from 0")
        pod = newest(self._connection, Member(self.namespace, name, role, index, job.uid))
        if pod is None:
            raise NoObjectError(f"{role}/{index} of {name} has no pod that runs now; try again when it is Ready")
        return pod

    def _change(self, name: str, spec: Mapping[str, Any]) -> Job:
        return Job(self._connection.change(self.namespace, name, {"spec": dict(spec)}))


# --- logs: a follower continues with the next pod when a member is replaced


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of one role of a job. Without the job's `uid`, of any job that had its name."""

    namespace: str
    job: str
    role: str
    index: int
    uid: str = ""


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
        elif (
            job is None or Job(job).over or (span.until is not None and span.until.astimezone(UTC) < datetime.now(UTC))
        ):
            return
        else:
            time.sleep(POLL_S)


def newest(connection: KubeConnection, member: Member) -> Object | None:
    """Return the pod of the highest incarnation that has started, or None."""
    labels = {env.LABEL_JOB: member.job, env.LABEL_ROLE: member.role, env.LABEL_INDEX: member.index}
    started = (
        pod
        for pod in connection.pods(member.namespace, labels)
        if pod["status"].get("phase") != "Pending"
        # Pods of an earlier job of the name may still end. Those of version 0.1.0 have no such label.
        and (not member.uid or pod["metadata"]["labels"].get(env.LABEL_JOB_UID, member.uid) == member.uid)
    )
    return max(started, key=lambda pod: int(pod["metadata"]["labels"][env.LABEL_INCARNATION]), default=None)


def before(lines: Iterator[str], until: datetime) -> Iterator[str]:
    """Yield the lines up to a time, without their time stamps. The API server has no option for an end."""
    for line in lines:
        when, _, text = line.partition(" ")
        if datetime.fromisoformat(when) > until:
            return
        yield text


def _lines(connection: KubeConnection, member: Member, pod: Object, span: Span, *, follow: bool) -> Iterator[str]:
    since_s = None if span.since is None else max(1, math.ceil((datetime.now(UTC) - span.since).total_seconds()))
    lines = connection.log(
        member.namespace,
        pod["metadata"]["name"],
        follow=follow,
        since_seconds=since_s,
        timestamps=span.until is not None,
    )
    return lines if span.until is None else before(lines, span.until.astimezone(UTC))
