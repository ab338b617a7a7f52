"""Jobs on an API server without an operator: the tests write statuses, events and pods in its place."""

from __future__ import annotations

from typing import Any

import httpx

from cpr_contract import env
from cpr_operator.cluster.kubernetes import event_object
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import job_view

NAMESPACE = "default"
JOBS = f"/apis/cprjob.io/v1alpha1/namespaces/{NAMESPACE}/cprjobs"
CORE = f"/api/v1/namespaces/{NAMESPACE}"


def job(api: httpx.Client, name: str) -> dict[str, Any]:
    """Return the job."""
    answer = api.get(f"{JOBS}/{name}")
    assert answer.status_code == httpx.codes.OK, answer.text
    found: dict[str, Any] = answer.json()
    return found


def write_status(api: httpx.Client, name: str, status: dict[str, Any]) -> None:
    """Write the status as the operator would."""
    answer = api.put(f"{JOBS}/{name}/status", json=job(api, name) | {"status": status})
    assert answer.status_code == httpx.codes.OK, answer.text


def emit(api: httpx.Client, name: str, reason: str, message: str, now: float) -> None:
    """Publish an event as the operator does."""
    event = event_object(job_view(job(api, name)), Event("Warning", reason, message, key=f"{reason}/{now}"), now)
    answer = api.post(f"{CORE}/events", json=event)
    assert answer.status_code == httpx.codes.CREATED, answer.text


def run_pod(api: httpx.Client, name: str, role: str, index: int, incarnation: int) -> str:
    """Create a running pod of the job and return its name."""
    pod = f"{name}-{role}-{index}-{incarnation}"
    labels = {env.LABEL_JOB: name, env.LABEL_ROLE: role, env.LABEL_INDEX: str(index)}
    labels[env.LABEL_INCARNATION] = str(incarnation)
    container = {"name": env.MAIN_CONTAINER, "image": "none"}
    manifest = {"metadata": {"name": pod, "labels": labels}, "spec": {"containers": [container]}}
    answer = api.post(f"{CORE}/pods", json=manifest)
    assert answer.status_code == httpx.codes.CREATED, answer.text
    answer = api.put(f"{CORE}/pods/{pod}/status", json=answer.json() | {"status": {"phase": "Running"}})
    assert answer.status_code == httpx.codes.OK, answer.text
    return pod


def pods(api: httpx.Client, name: str) -> set[str]:
    """Return the names of the job's pods."""
    answer = api.get(f"{CORE}/pods", params={"labelSelector": f"{env.LABEL_JOB}={name}"})
    return {each["metadata"]["name"] for each in answer.json()["items"]}
