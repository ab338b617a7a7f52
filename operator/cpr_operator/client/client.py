"""CPRJobs by name: what a user does with a job on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import yaml

from cpr_contract import env
from cpr_operator.client import logs
from cpr_operator.client.connection import Connection, Place
from cpr_operator.client.errors import ClientError, NoObjectError, TookTooLongError, UnavailableError
from cpr_operator.client.job import Event, Job, events_of, is_over, to_create
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
        document = job if isinstance(job, Mapping) else yaml.safe_load(Path(job).read_text("utf-8"))
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
        member = logs.Member(self.namespace, name, role, index)
        span = logs.Span(None if since_s is None else datetime.now(UTC) - timedelta(seconds=since_s))
        return (logs.follow if follow else logs.read)(self._connection, member, span)

    def events(self, name: str) -> tuple[Event, ...]:
        """What the operator said about the job, oldest first. Kubernetes keeps events for an hour."""
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
        job = self.get(name)
        members = (job.spec.shards if role == env.ROLE_SHARD else job.spec.trainers).replicas
        if not 0 <= index < members:
            raise ClientError(f"there is no {role}/{index}; {name} has {members} {role}s, counted from 0")
        pod = logs.newest(self._connection, logs.Member(self.namespace, name, role, index))
        if pod is None:
            raise NoObjectError(f"{role}/{index} of {name} has no pod that runs now; try again when it is Ready")
        meta = pod["metadata"]
        self._connection.delete_pod(self.namespace, meta["name"], meta["uid"], None if drain else 0)
        return str(meta["name"])

    def tool(self, pod: Mapping[str, Any]) -> AbstractContextManager[Tool]:
        """Create a pod of your own, with the manifest `pod`; it runs commands, and is deleted with the context."""
        return opened_tool(self._connection, dict(pod))

    def _change(self, name: str, spec: Mapping[str, Any]) -> Job:
        return Job(self._connection.change(self.namespace, name, {"spec": dict(spec)}))
