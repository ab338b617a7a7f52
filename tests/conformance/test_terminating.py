"""The answers of a real API server in a namespace that is being deleted: creates fail with their own error."""

from __future__ import annotations

import time

import pytest

from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.protocol import Event, TerminatingError
from cpr_operator.cluster.views import JobView
from support.apiserver import ApiServer as RunningApiServer
from support.benches import pod_manifest

GOING = "going"

pytestmark = pytest.mark.apiserver


async def test_terminating_namespace_is_reported(apiserver: RunningApiServer) -> None:
    job = JobView(GOING, "job", "12345678-0000", 1, "1", 0.0, deleting=True)
    cluster = KubernetesCluster(ApiServer(await load_configuration(apiserver.kubeconfig)), time.time)
    with apiserver.client() as client:
        made = client.post("/api/v1/namespaces", json={"metadata": {"name": GOING}})
        assert made.status_code == 201, made.text
        assert client.delete(f"/api/v1/namespaces/{GOING}").is_success
        try:
            with pytest.raises(TerminatingError, match="being terminated"):
                await cluster.create_pod(pod_manifest(job))
            with pytest.raises(TerminatingError):
                await cluster.emit(job, Event("Warning", "SavesLeft", "They are left.", "left"))
        finally:
            await cluster.close()
