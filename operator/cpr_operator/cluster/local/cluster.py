"""`Cluster` on this machine. A working folder has all state: jobs, Secrets, pods' files and logs, saves.

Pods end with this process, also if it is killed. A later process finds the job without pods, as after a loss of all
nodes.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import random
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from cpr_contract import env
from cpr_operator.api.base import format_time
from cpr_operator.cluster.certificates import KeyPair, PodTLS, new_identity
from cpr_operator.cluster.identity import CERTIFICATE, KEY, OperatorIdentity
from cpr_operator.cluster.local.object_files import AppliedObjects, ObjectFiles, append_event, write_atomically
from cpr_operator.cluster.local.pod_folder import PodFolder, PortBlocks
from cpr_operator.cluster.local.pod_process import DEFAULT_GRACE_S, LocalPod, check_manifest
from cpr_operator.cluster.pod_reports import ReportFetcher, reaches
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    Event,
    Manifest,
    NotFoundError,
    PodPatch,
    Priority,
    UnavailableError,
)
from cpr_operator.cluster.views import JobView, PodView, PodWarning, job_view

#: The folder with the identity of the operator, among those of Secrets.
IDENTITY = "cprjob-operator-identity"
#: Seconds for which the end of a deleted pod stays visible: a kubelet reports it before the object is deleted.
SHOW_END_S = 1.0


class LocalCluster:
    """A `Cluster` of processes, which inherit `environment`.

    Raises `UnavailableError` if another process works in the folder.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        environment: Mapping[str, str],
    ) -> None:
        self._workdir = workdir
        self._clock = clock
        self._ports = PortBlocks(rng)
        self._environment = environment
        self._subscribers: list[Callable[[], None]] = []
        self._status_subscribers: list[Callable[[], None]] = []
        self._lock = _lock(workdir)
        self._jobs = ObjectFiles(workdir / "jobs")
        self._pods: dict[tuple[str, str], LocalPod] = {}
        self._tasks: dict[LocalPod, asyncio.Task[None]] = {}
        self._applied = AppliedObjects()
        self._reports = ReportFetcher(pauses=False)  # there are few pods, and no other job to delay
        self.identity = OperatorIdentity(self._read_identity, clock)  # a resumed run has it again
        self.events: dict[str, Event] = {}  # of this process, oldest first; a file has all

    async def close(self) -> None:
        """Kill every process and wait until all have ended."""
        for pod, task in self._tasks.items():
            if not pod.signal(signal.SIGKILL):
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._ports.close()
        await self._reports.close()
        self._lock.close()

    # --- A user's requests

    def create_job(self, document: Mapping[str, Any]) -> JobView:
        """Store a new CPRJob. Raises AlreadyExistsError."""
        return job_view(self._jobs.create(dict(document), format_time(self._clock())))

    def change_spec(self, namespace: str, name: str, changes: Mapping[str, Any]) -> JobView:
        """Replace top-level fields of a job's spec. Raises NotFoundError."""
        job = self._jobs.read(namespace, name)
        written = job_view(self._jobs.replace({**job, "spec": {**job["spec"], **changes}}))
        self._changed()
        return written

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a pod or a spec changes, as a watch would."""
        self._subscribers.append(changed)

    def on_status(self, written: Callable[[], None]) -> None:
        """Call `written` whenever the status of a job is written."""
        self._status_subscribers.append(written)

    def signal_pod(self, namespace: str, name: str, number: signal.Signals, *, whole: bool = True) -> bool:
        """Send a signal to a pod's processes, or only to the one that its supervisor forked; False if there is none.

        Raises NotFoundError.
        """
        return self._pod(namespace, name).signal(number, whole=whole)

    # --- The controller's requests

    def at(self, priority: Priority) -> Self:  # noqa: ARG002 -- no request is limited here
        return self

    async def get_job(self, namespace: str, name: str, *, cached: bool = False) -> JobView:  # noqa: ARG002 -- no cache
        return job_view(self._jobs.read(namespace, name))

    async def list_jobs(self, namespaces: tuple[str, ...]) -> tuple[JobView, ...]:
        jobs = map(job_view, self._jobs.all())
        return tuple(job for job in jobs if not namespaces or job.namespace in namespaces)

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:  # noqa: ARG002 -- no cache
        return tuple(
            pod.view
            for (namespace, _), pod in self._pods.items()
            if namespace == job.namespace and pod.object["metadata"].get("labels", {}).get(env.LABEL_JOB) == job.name
        )

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        written = job_view(self._jobs.replace({**self._as_read(job), "status": dict(status)}))
        for notify in self._status_subscribers:
            notify()
        return written

    async def set_finalizers(self, job: JobView, finalizers: tuple[str, ...]) -> JobView:
        stored = self._as_read(job)
        changed = {**stored, "metadata": {**stored["metadata"], "finalizers": list(finalizers)}}
        if job.deleting and not finalizers:
            self._remove_job(job)
            return job_view(changed)
        return job_view(self._jobs.replace(changed))

    async def delete_job(self, job: JobView) -> None:
        stored = self._jobs.read(job.namespace, job.name)
        meta = stored["metadata"]
        if meta["uid"] != job.uid:
            raise NotFoundError(f"{job.name} of uid {job.uid} not found")
        if meta.get("finalizers"):
            now = format_time(self._clock())
            self._jobs.replace({**stored, "metadata": {"deletionTimestamp": now, **meta}})
        else:
            self._remove_job(job)

    async def check_pod(self, manifest: Manifest) -> None:
        check_manifest(manifest)

    async def create_pod(self, manifest: Manifest) -> PodView:
        meta = manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        if key in self._pods:
            raise AlreadyExistsError(f'pods "{meta["name"]}" already exists')
        check_manifest(manifest)
        folder = PodFolder(self._workdir / "pods" / meta["name"], self._workdir / "secrets")
        pod = LocalPod(manifest, folder, self._ports.take(), self._clock, self._changed)
        self._pods[key] = pod
        self._tasks[pod] = asyncio.create_task(self._run(pod), name=meta["name"])
        return pod.view

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        pod = self._pods.get((namespace, name))
        if pod is not None and pod.view.uid == uid:
            self._delete(pod, grace_s)

    async def patch_pod(self, namespace: str, patch: PodPatch) -> None:
        pod = self._pod(namespace, patch.name)
        if pod.view.uid != patch.uid:
            raise NotFoundError(f"pod {patch.name} of uid {patch.uid} not found")
        pod.annotate(patch.annotations, patch.labels)

    async def create_secret(self, manifest: Manifest) -> None:
        folder = self._secret_folder(manifest)
        if folder.exists():
            return
        plain = {key: text.encode() for key, text in manifest.get("stringData", {}).items()}
        coded = {key: base64.b64decode(text) for key, text in manifest.get("data", {}).items()}
        for key, content in {**coded, **plain}.items():
            write_atomically(folder / key, content, mode=0o600)

    async def has_secret(self, manifest: Manifest) -> bool:
        return self._secret_folder(manifest).exists()

    async def create(self, manifest: Manifest) -> None:
        self._applied.create(manifest)

    async def apply(self, manifest: Manifest) -> None:
        self._applied.apply(manifest)  # the objects have no effect here

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._applied.read(kind, namespace, name)

    async def merge_status(self, read: Manifest, status: Mapping[str, Any]) -> None:
        self._applied.merge_status(read, status)

    async def remove_finalizer(self, read: Manifest, finalizer: str) -> None:
        self._applied.remove_finalizer(read, finalizer)

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        self._applied.delete(kind, namespace, name, format_time(self._clock()))
        if kind == "Secret":
            shutil.rmtree(self._workdir / "secrets" / name, ignore_errors=True)

    async def emit(self, job: JobView, event: Event) -> None:
        key = f"{job.uid}/{event.key}"
        if key not in self.events:
            self.events[key] = event
            append_event(self._workdir, job.uid, event, self._clock())

    async def newest_warning(self, pod: PodView) -> PodWarning | None:  # noqa: ARG002 -- no kubelet reports any
        return None

    async def fetch_report(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        return await self._reports.fetch(pod, deadline_s, max_bytes, recorded, tls)

    async def send_roster(
        self, pod: PodView, roster: str, signature: str, deadline_s: float, tls: PodTLS | None = None
    ) -> None:
        await self._reports.send_roster(pod, roster, signature, deadline_s, tls)

    async def reaches(self, pod: PodView) -> bool:
        return await reaches(pod)

    # --- The work of API server, kubelet and garbage collector

    def _changed(self) -> None:
        for changed in self._subscribers:
            changed()

    def _as_read(self, job: JobView) -> dict[str, Any]:
        """The stored job under the version at which `job` was read, so that an outdated write is a conflict."""
        stored = self._jobs.read(job.namespace, job.name)
        meta = {**stored["metadata"], "uid": job.uid, "resourceVersion": job.resource_version}
        return {**stored, "metadata": meta}

    def _secret_folder(self, manifest: Manifest) -> Path:
        return self._workdir / "secrets" / str(manifest["metadata"]["name"])

    async def _read_identity(self) -> KeyPair:
        certificate, key = (self._workdir / "secrets" / IDENTITY / part for part in (CERTIFICATE, KEY))
        if not certificate.exists():  # it is written last
            made = new_identity()
            write_atomically(key, made.key.encode(), mode=0o600)
            write_atomically(certificate, made.certificate.encode(), mode=0o600)
        return KeyPair(certificate.read_text("ascii"), key.read_text("ascii"))

    def _pod(self, namespace: str, name: str) -> LocalPod:
        try:
            return self._pods[namespace, name]
        except KeyError:
            raise NotFoundError(f'pods "{name}" not found') from None

    async def _run(self, pod: LocalPod) -> None:
        try:
            await pod.run(self._environment)
        finally:
            del self._tasks[pod]
            self._ports.give_back(pod.port_base)
        if pod.deleting:
            asyncio.get_running_loop().call_later(SHOW_END_S, self._forget, pod)

    def _delete(self, pod: LocalPod, grace_s: int | None) -> None:
        if grace_s is None:
            grace_s = pod.object["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        until = pod.mark_deleted(grace_s)
        asyncio.get_running_loop().call_later(until - self._clock(), pod.signal, signal.SIGKILL)
        if pod.ended or grace_s == 0:
            self._forget(pod)

    def _forget(self, pod: LocalPod) -> None:
        meta = pod.object["metadata"]
        key = (meta["namespace"], meta["name"])
        if self._pods.get(key) is pod:
            del self._pods[key]
            self._changed()

    def _remove_job(self, job: JobView) -> None:
        self._jobs.remove(job.namespace, job.name)
        for pod in list(self._pods.values()):
            if pod.view.owner_uid == job.uid:
                self._delete(pod, None)


def _lock(workdir: Path) -> BinaryIO:
    workdir.mkdir(parents=True, exist_ok=True)
    lock = (workdir / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UnavailableError(f"another process uses {workdir}") from None
    return lock
