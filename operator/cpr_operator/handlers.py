"""kopf's handlers. Its events only wake jobs in the queue; a pass reads the state from the API server.

Only raw event handlers are used, so kopf writes neither annotations nor finalizers, and keeps no state of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf
from pydantic import ValidationError

from cpr_contract import env
from cpr_operator.api.cprjob_spec import GROUP, PLURAL, VERSION
from cpr_operator.api.status import Status
from cpr_operator.cluster.views import PodView, pod_view
from cpr_operator.cluster.watch_cache import WatchCache
from cpr_operator.desired import workload
from cpr_operator.metrics import Metrics
from cpr_operator.queue import DEBOUNCE_S, ReconcileQueue
from cpr_operator.reconcile.kueue import awaits_release

#: Phases of jobs without a wait for the first pass after the operator's start.
URGENT = frozenset({"Recovering", "RollingBack", "Suspending"})


def make_registry(
    queue: ReconcileQueue,
    metrics: Metrics,
    watched: WatchCache,
    on_pod_event: Callable[[str, str, PodView], None],
    on_running: Callable[[str, str], None],
) -> kopf.OperatorRegistry:
    """The operator's handlers. Events without changes (for example from our own writes) do not trigger a pass.

    `on_pod_event` is called with each pod that has changed, because an ended pod may not be listed by the next pass.
    `on_running` is called with each listed job that trains.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def job_changed(type: str | None, event: kopf.RawEvent, **_: Any) -> None:  # noqa: A002 -- kopf's name for it
        body = event["object"]
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        if type == "DELETED":
            watched.forget(namespace, name)
            metrics.forget(namespace, name)
            queue.wake(namespace, name)
            return
        changed, status = watched.on_job_event(body), read_status(body.get("status", {}))
        if type is None:
            if status is not None and status.phase == "Running":
                on_running(namespace, name)
            queue.schedule(namespace, name, urgent=status is not None and status.phase in URGENT)
        elif changed:
            queue.wake(namespace, name)
        if status is not None:
            metrics.observe_status(namespace, name, status)

    @kopf.on.event("", "v1", "pods", registry=registry, labels={env.LABEL_JOB: kopf.PRESENT})
    async def pod_changed(type: str | None, event: kopf.RawEvent, **_: Any) -> None:  # noqa: A002
        body = event["object"]
        namespace, name = body["metadata"]["namespace"], body["metadata"]["labels"][env.LABEL_JOB]
        pod = pod_view(body)
        changed = watched.on_pod_event(namespace, name, pod, deleted=type == "DELETED")
        # A first pass reads everything that was listed before it.
        if changed and (type is not None or queue.started(namespace, name)):
            on_pod_event(namespace, name, pod)
            # A loss stops training, so it is handled at once; other events can share a pass.
            queue.wake(namespace, name, 0.0 if type == "DELETED" or pod.ended else DEBOUNCE_S)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await queue.close()

    return registry


def watch_workloads(registry: kopf.OperatorRegistry, queue: ReconcileQueue, releases: ReconcileQueue) -> None:
    """Add a handler that wakes a job when its Workload changes.

    `releases` queues Workloads that wait for the job's pods to end (`controller.quota.QuotaRelease`).
    """
    own = {env.LABEL_JOB: kopf.PRESENT}

    @kopf.on.event(workload.KUEUE, workload.VERSION, workload.PLURAL, registry=registry, labels=own)
    async def workload_changed(type: str | None, event: kopf.RawEvent, **_: Any) -> None:  # noqa: A002 -- kopf's name
        body = event["object"]
        meta = body["metadata"]
        namespace, name = meta["namespace"], meta["labels"][env.LABEL_JOB]
        if queue.started(namespace, name):
            queue.wake(namespace, name, DEBOUNCE_S)
        if type != "DELETED" and awaits_release(body):
            releases.wake(namespace, str(meta["name"]))


def read_status(status: Any) -> Status | None:
    """Parse a job's status; None if that fails, which the controller reports."""
    try:
        return Status.model_validate(dict(status))
    except ValidationError:
        return None
