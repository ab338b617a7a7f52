"""Test benches: an implementation of `Cluster`, with functions that act as users and other programs."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx
import yaml

from cpr_contract import env
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.protocol import Cluster
from cpr_operator.cluster.views import JobView
from simulation.control_plane.cluster import SimulatedCluster

NAMESPACE = "default"
EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
JOBS = f"/apis/cprjob.io/v1alpha1/namespaces/{NAMESPACE}/cprjobs"
SLEEP = "import time; time.sleep(600)"


class Bench(Protocol):
    """A cluster with the actions of users and other programs."""

    @property
    def cluster(self) -> Cluster: ...

    async def make_job(self, name: str) -> JobView: ...

    async def suspend(self, name: str) -> None: ...


def document(name: str) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text("utf-8"))
    job["metadata"] = {"name": name, "namespace": NAMESPACE}
    return job


def pod_manifest(job: JobView, index: int = 0, incarnation: int = 1) -> dict[str, Any]:
    labels = {
        env.LABEL_JOB: job.name,
        env.LABEL_ROLE: env.ROLE_SHARD,
        env.LABEL_INDEX: str(index),
        env.LABEL_INCARNATION: str(incarnation),
    }
    owner = {"apiVersion": "cprjob.io/v1alpha1", "kind": "CPRJob", "name": job.name, "uid": job.uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-shard-{index}-{incarnation}",
            "namespace": job.namespace,
            "labels": labels,
            "annotations": {env.ANNOTATION_ROSTER_VERSION: "3"},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": env.MAIN_CONTAINER, "image": "none", "command": [sys.executable, "-c", SLEEP]}],
        },
    }


class LocalBench:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    async def make_job(self, name: str) -> JobView:
        return self.cluster.create_job(document(name))

    async def suspend(self, name: str) -> None:
        self.cluster.change_spec(NAMESPACE, name, {"suspend": True})


class FakeBench:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self._made = itertools.count()

    async def make_job(self, name: str) -> JobView:
        return self.cluster.add_job(name, document(name)["spec"], uid=f"uid-{next(self._made)}")

    async def suspend(self, name: str) -> None:
        self.cluster.set_spec(name, suspend=True)


class KubernetesBench:
    def __init__(self, cluster: KubernetesCluster, client: httpx.Client) -> None:
        self.cluster = cluster
        self._client = client

    async def make_job(self, name: str) -> JobView:
        answer = await asyncio.to_thread(self._client.post, JOBS, json=document(name))
        assert answer.status_code == httpx.codes.CREATED, answer.text
        return await self.cluster.get_job(NAMESPACE, name)

    async def suspend(self, name: str) -> None:
        self._patch(name, {"spec": {"suspend": True}})

    def _patch(self, name: str, patch: Mapping[str, Any]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        self._client.patch(f"{JOBS}/{name}", json=patch, headers=headers).raise_for_status()
