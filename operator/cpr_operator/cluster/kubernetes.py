"""`Cluster` on a Kubernetes API server. Each method is one request; the controller decides about the answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from cpr_contract import env
from cpr_operator.api.base import epoch, format_time
from cpr_operator.api.cprjob_spec import API_VERSION, KIND, PLURAL
from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.pod_reports import ReportFetcher, reaches
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ConflictError,
    Event,
    Manifest,
    NotFoundError,
    PodPatch,
    Priority,
    RefusedError,
    UnavailableError,
)
from cpr_operator.cluster.views import JobView, PodView, PodWarning, job_view, pod_view
from cpr_operator.cluster.watch_cache import WatchCache

FIELD_MANAGER = "cprjob-operator"
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{env.GROUP}"
#: Longer messages are refused by the server's validation of events.
MAX_EVENT_MESSAGE = 1024

#: The server's answer if an admission webhook does not support dry runs: the object may be valid.
NO_DRY_RUN = "does not support dry run"

#: The first version of Kubernetes, major and minor, with restart rules of containers by default.
_RESTART_RULES = (1, 35)

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
#: The version of Kubernetes 1.37; earlier ones have other fields.
POD_GROUPS = "/apis/scheduling.k8s.io/v1beta1"
CERT_MANAGER = "/apis/cert-manager.io/v1"
#: Path prefix and plural of each kind of object.
PREFIXES: Mapping[str, tuple[str, str]] = {
    KIND: (f"/apis/{API_VERSION}", PLURAL),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Secret": ("/api/v1", "secrets"),
    "PodGroup": (POD_GROUPS, "podgroups"),
    "CertificateRequest": (CERT_MANAGER, "certificaterequests"),
    "Workload": (KUEUE, "workloads"),
    "ResourceFlavor": (KUEUE, "resourceflavors"),
    "WorkloadPriorityClass": (KUEUE, "workloadpriorityclasses"),
}


class KubernetesCluster:
    """A `Cluster` over an API server. `clock` gives seconds since the epoch, for the times of events.

    `watched` caches the objects that watches show. Without it everything is read from the server.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Callable[[], float],
        watched: WatchCache | None = None,
        reports: ReportFetcher | None = None,
    ) -> None:
        self._server = server
        self._clock = clock
        self._watched = watched
        self._reports = reports or ReportFetcher()

    def at(self, priority: Priority) -> KubernetesCluster:
        return KubernetesCluster(self._server.at(priority), self._clock, self._watched, self._reports)

    async def close(self) -> None:
        """Close all connections."""
        await self._reports.close()
        await self._server.close()

    async def crd_annotations(self) -> Mapping[str, str]:
        """The annotations of the installed CRD. Raises NotFoundError, RefusedError, UnavailableError."""
        crd = await self._server.get(CRD_PATH)
        annotations: dict[str, str] = crd["metadata"].get("annotations", {})
        return annotations

    async def has_restart_rules(self) -> bool:
        """Return True if the server supports restart rules of containers. Raises UnavailableError.

        With the feature disabled, such a server drops the rules from pods without an error.
        """
        with suppress(NotFoundError, RefusedError):
            return has_restart_rules(await self._server.get("/version"))
        return False

    async def has_pod_groups(self) -> bool:
        """Return True if the server has PodGroups. Raises UnavailableError."""
        with suppress(NotFoundError, RefusedError):
            served = await self._server.get(POD_GROUPS)
            return any(each["kind"] == "PodGroup" for each in served.get("resources", ()))
        return False

    async def serves_workloads(self) -> bool:
        """Return True if Kueue's kinds are installed. Raises RefusedError, UnavailableError."""
        with suppress(NotFoundError):
            await self._server.get(KUEUE)
            return True
        return False

    async def get_job(self, namespace: str, name: str, *, cached: bool = False) -> JobView:
        watched = self._watched
        if cached and watched is not None and (found := watched.find_job(namespace, name)) is not None:
            return job_view(found)
        return await self._cached(namespace, name, self._server.get(_path(KIND, namespace, name)))

    async def list_jobs(self, namespaces: tuple[str, ...]) -> tuple[JobView, ...]:
        paths = [_path(KIND, each) for each in namespaces or ("",)]
        return tuple([job_view(job) for path in paths for job in await self._server.items(path)])

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:
        key, watched = (job.namespace, job.name), self._watched
        if cached and watched is not None and (found := watched.find_pods(*key)) is not None:
            return found
        query = {"labelSelector": f"{env.LABEL_JOB}={job.name}"}
        if cached:  # any version suffices, so the server need not read etcd
            query["resourceVersion"] = "0"
        changes = watched.pod_changes(*key) if watched is not None else 0
        pods = tuple(map(pod_view, await self._server.items(_path("Pod", job.namespace), **query)))
        if watched is not None:
            watched.store_pods(*key, changes, pods)
        return pods

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        meta = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "resourceVersion": job.resource_version}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
        path = f"{_path(KIND, job.namespace, job.name)}/status"
        return await self._write_job(job, self._server.replace(path, body))

    async def set_finalizers(self, job: JobView, finalizers: tuple[str, ...]) -> JobView:
        meta = {"uid": job.uid, "resourceVersion": job.resource_version, "finalizers": list(finalizers)}
        return await self._write_job(job, self._server.merge(_path(KIND, job.namespace, job.name), {"metadata": meta}))

    async def delete_job(self, job: JobView) -> None:
        options = _delete_options(uid=job.uid, propagationPolicy="Background")
        try:
            await self._server.delete(_path(KIND, job.namespace, job.name), options)
        except ConflictError as error:
            raise NotFoundError(str(error)) from error

    async def check_pod(self, manifest: Manifest) -> None:
        path = _path("Pod", manifest["metadata"]["namespace"])
        try:
            with suppress(AlreadyExistsError), _refused_without_namespace():
                await self._server.create(path, manifest, dryRun="All")
        except RefusedError as error:
            if NO_DRY_RUN not in str(error):
                raise

    async def create_pod(self, manifest: Manifest) -> PodView:
        path = _path("Pod", manifest["metadata"]["namespace"])
        try:
            with _refused_without_namespace():
                return pod_view(await self._server.create(path, manifest, fieldManager=FIELD_MANAGER))
        except ConflictError as error:
            # Two creates updated a quota at the same time: the server refuses one, which is retried.
            raise UnavailableError(str(error)) from error

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        with suppress(NotFoundError, ConflictError):
            await self._server.delete(_path("Pod", namespace, name), _delete_options(uid=uid, **grace))

    async def patch_pod(self, namespace: str, patch: PodPatch) -> None:
        meta = {"uid": patch.uid, "annotations": dict(patch.annotations), "labels": dict(patch.labels)}
        try:
            await self._server.merge(_path("Pod", namespace, patch.name), {"metadata": meta})
        except RefusedError as error:
            if "metadata.uid" not in str(error):
                raise
            raise NotFoundError(str(error)) from error  # a pod of that name, but of another uid

    async def create_secret(self, manifest: Manifest) -> None:
        path = _path("Secret", manifest["metadata"]["namespace"])
        with suppress(AlreadyExistsError), _refused_without_namespace():
            await self._server.create(path, manifest, fieldManager=FIELD_MANAGER)

    async def has_secret(self, manifest: Manifest) -> bool:
        path = _path("Secret", manifest["metadata"]["namespace"])
        try:
            with _refused_without_namespace():
                await self._server.create(path, manifest, dryRun="All")
        except AlreadyExistsError:
            return True
        return False

    async def create(self, manifest: Manifest) -> None:
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        with suppress(AlreadyExistsError):
            await self._server.create(path, manifest, fieldManager=FIELD_MANAGER)

    async def apply(self, manifest: Manifest) -> None:
        meta = manifest["metadata"]
        path = _path(manifest["kind"], meta["namespace"], meta["name"])
        with _refused_without_namespace():
            await self._server.apply(path, manifest, FIELD_MANAGER)

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        with suppress(NotFoundError):
            return await self._server.get(_path(kind, namespace, name))
        return None

    async def merge_status(self, read: Manifest, status: Mapping[str, Any]) -> None:
        meta = read["metadata"]
        path = f"{_path(read['kind'], meta['namespace'], meta['name'])}/status"
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        await self._server.merge(path, {"metadata": version, "status": status})

    async def remove_finalizer(self, read: Manifest, finalizer: str) -> None:
        meta = read["metadata"]
        others = [each for each in meta.get("finalizers") or () if each != finalizer]
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "finalizers": others}
        await self._server.merge(_path(read["kind"], meta["namespace"], meta["name"]), {"metadata": version})

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        with suppress(NotFoundError):
            await self._server.delete(_path(kind, namespace, name), _delete_options())

    async def emit(self, job: JobView, event: Event) -> None:
        with suppress(AlreadyExistsError), _refused_without_namespace():
            await self._server.create(_path("Event", job.namespace), event_object(job, event, self._clock()))

    async def newest_warning(self, pod: PodView) -> PodWarning | None:
        selector = f"involvedObject.uid={pod.uid},type=Warning"
        events = await self._server.items(_path("Event", pod.namespace), fieldSelector=selector)

        def last_seen(event: Mapping[str, Any]) -> float:
            """Return the time of the last occurrence, by the clock of its reporter."""
            series = event.get("series") or {}
            stamps = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
            return max((epoch(stamp) or 0.0 for stamp in stamps), default=0.0)

        newest = max(events, key=last_seen, default=None)
        return None if newest is None else PodWarning(newest.get("reason") or "Warning", newest.get("message") or "")

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

    async def _write_job(self, job: JobView, write: Awaitable[dict[str, Any]]) -> JobView:
        try:
            return await self._cached(job.namespace, job.name, write)
        except (ConflictError, NotFoundError):  # the job may have been read from the cache
            if self._watched is not None:
                self._watched.expire_job(job.namespace, job.name)
            raise

    async def _cached(self, namespace: str, name: str, request: Awaitable[dict[str, Any]]) -> JobView:
        """Return the job of the server's answer, and cache it for later passes."""
        if self._watched is None:
            return job_view(await request)
        changes = self._watched.job_changes(namespace, name)
        document = await request
        self._watched.store_job(changes, document)
        return job_view(document)


def has_restart_rules(version: Mapping[str, Any]) -> bool:
    """Return True if a server of this version (`/version`) has restart rules of containers by default: from 1.35."""
    numbers = tuple(int(re.sub(r"\D.*", "", str(version.get(part, ""))) or 0) for part in ("major", "minor"))
    return numbers >= _RESTART_RULES


def event_object(job: JobView, event: Event, now: float) -> dict[str, Any]:
    """The v1 Event; its name follows from the job's uid and the event's key, so a repeated create finds it."""
    digest = hashlib.sha256(f"{job.uid}/{event.key}".encode()).hexdigest()[:16]
    stamp = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{digest}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_EVENT_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


@contextmanager
def _refused_without_namespace() -> Iterator[None]:
    """Raise RefusedError for an object in a namespace that no longer exists."""
    try:
        yield
    except NotFoundError as error:
        raise RefusedError(str(error)) from error


def _delete_options(uid: str | None = None, **options: Any) -> dict[str, Any]:
    preconditions = {} if uid is None else {"preconditions": {"uid": uid}}
    return {"apiVersion": "v1", "kind": "DeleteOptions", **preconditions, **options}


def _path(kind: str, namespace: str = "", name: str = "") -> str:
    """Return the path of an object, or without a name that of all; without a namespace that of the whole cluster."""
    prefix, plural = PREFIXES[kind]
    within = f"{prefix}/namespaces/{namespace}/{plural}" if namespace else f"{prefix}/{plural}"
    return f"{within}/{name}" if name else within
