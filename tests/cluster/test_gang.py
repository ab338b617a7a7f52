"""Two jobs, and capacity for one and a half: all pods of one are placed, and none of the other."""

import json

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import ENDLESS, Run, manifest, pod_template

pytestmark = pytest.mark.timeout(300, func_only=True)

TRAINERS, SHARDS = 1, 2


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def capacity(cluster: Cluster) -> int:
    """Return the millicores that pods may still request on the smallest node: no pod of another test runs now."""
    free = []
    for node in cluster.kubectl.get("nodes")["items"]:
        pods = cluster.kubectl.get(
            "pods", "--all-namespaces", "--field-selector", f"spec.nodeName={node['metadata']['name']}"
        )["items"]
        requests = [
            millicores(container.get("resources", {}).get("requests", {}).get("cpu", "0m"))
            for pod in pods
            if pod["status"]["phase"] in {"Pending", "Running"}
            for container in pod["spec"]["containers"]
        ]
        free.append(millicores(node["status"]["allocatable"]["cpu"]) - sum(requests))
    return min(free)


def bound(space: Space, job: str) -> int:
    """Return how many pods of a job have a node."""
    return sum(bool(pod.node) for pod in space.pods(job=job))


def test_one_job_has_all_its_pods_and_the_other_none(cluster: Cluster, space: Space) -> None:
    node = cluster.nodes.name(2)
    template = pod_template(node)
    # Four pods of one size fit on the node, and a job has three.
    (main,) = template["spec"]["containers"]
    main["resources"] = {
        "requests": {"cpu": f"{capacity(cluster) // 4}m", "memory": "64Mi"},
        "limits": {"memory": "1Gi"},
    }
    parts = {
        "data": ENDLESS,
        "trainers__replicas": TRAINERS,
        "shards__replicas": SHARDS,
        "trainers__template": template,
        "shards__template": template,
    }
    both = [Run(space, name) for name in ("one", "other")]
    for run in both:
        space.apply(manifest(run.name, **parts))

    def running() -> Run | None:
        return next((run for run in both if run.status().get("phase") == "Running"), None)

    first = until("one of them trains", running, 180)
    (second,) = [run for run in both if run is not first]
    until("the other one has pods", lambda: len(space.pods(job=second.name)) == TRAINERS + SHARDS, 60)
    assert second.status()["phase"] == "Starting"
    second.wait(
        "is refused by the scheduler",
        lambda status: any(
            each["type"] == "PodsReady" and each["reason"] == "Unschedulable" for each in status["conditions"]
        ),
        within_s=120,
    )
    assert (bound(space, first.name), bound(space, second.name)) == (TRAINERS + SHARDS, 0)
    groups = json.loads(space.kubectl("get", "podgroups.scheduling.k8s.io", "-o", "json"))["items"]
    assert {group["spec"]["schedulingPolicy"]["gang"]["minCount"] for group in groups} == {TRAINERS + SHARDS}
    # A pod that replaces a member joins the group that is placed.
    first.before = first.uids()
    victim = first.pod("shard", 1)
    first.recover_from("the deletion", lambda: space.delete_pod(victim.name, force=True))
    assert first.pod("shard", 1).uid != victim.uid
    first.delete()
    second.wait("trains once there is capacity", lambda status: status.get("phase") == "Running", within_s=180)
    second.delete()
