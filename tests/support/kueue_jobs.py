"""The operator as a user of an API server with Kueue: its rights, its jobs, and a garbage collector by hand."""

from __future__ import annotations

from typing import Any

import httpx

from cpr_contract import env
from support.benches import NAMESPACE
from support.chart import of_kind, render
from support.kueue import GROUP, RIGHTS, VERSION

USER = TOKEN = "cprjob-operator"  # noqa: S105 -- it opens a server on loopback for the tests alone
KUEUE = f"/apis/{GROUP}/{VERSION}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WORKLOADS = f"{KUEUE}/namespaces/{NAMESPACE}/workloads"
PATHS = {
    **{
        kind: f"{KUEUE}/{plural}"
        for kind, plural in {
            "ResourceFlavor": "resourceflavors",
            "ClusterQueue": "clusterqueues",
            "WorkloadPriorityClass": "workloadpriorityclasses",
            "AdmissionCheck": "admissionchecks",
            "MultiKueueConfig": "multikueueconfigs",
            "MultiKueueCluster": "multikueueclusters",
        }.items()
    },
    "LocalQueue": f"{KUEUE}/namespaces/{NAMESPACE}/localqueues",
    "ClusterRole": f"{RIGHTS}/clusterroles",
    "ClusterRoleBinding": f"{RIGHTS}/clusterrolebindings",
}


def grant(api: httpx.Client) -> None:
    """The rights that the chart gives an operator that uses Kueue, and no other."""
    objects = render("kueue.enabled=true")
    bindings = [*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")]
    bound = {each["roleRef"]["name"] for each in bindings}
    roles = [*of_kind(objects, "Role"), *of_kind(objects, "ClusterRole")]
    rules = [rule for role in roles if role["metadata"]["name"] in bound for rule in role["rules"]]
    meta = {"name": USER}
    api.post(f"{RIGHTS}/clusterroles", json={"metadata": meta, "rules": rules}).raise_for_status()
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER}
    binding = {"metadata": meta, "roleRef": role, "subjects": [{"kind": "User", "name": USER}]}
    api.post(f"{RIGHTS}/clusterrolebindings", json=binding).raise_for_status()


def create(api: httpx.Client, document: dict[str, Any]) -> None:
    """Create an object of these kinds. Fails if the API server refuses it."""
    answer = api.post(PATHS[document["kind"]], json=document)
    assert answer.is_success, answer.text


def pods_of(api: httpx.Client, job: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.get(PODS, params={"labelSelector": f"{env.LABEL_JOB}={job}"}).json()["items"]
    return items


def workload_of(api: httpx.Client, job: str) -> dict[str, Any]:
    found = api.get(WORKLOADS, params={"labelSelector": f"{env.LABEL_JOB}={job}"}).raise_for_status().json()["items"]
    return found[0] if found else {}


def condition(document: dict[str, Any], kind: str) -> str:
    """The status of a condition, and its reason."""
    found = document.get("status", {}).get("conditions") or ()
    return next((f"{each['status']} {each['reason']}" for each in found if each["type"] == kind), "")


def collect_garbage(api: httpx.Client, job: str) -> None:
    """Delete the job's objects in place of the garbage collector."""
    for pod in pods_of(api, job):
        api.delete(f"{PODS}/{pod['metadata']['name']}").raise_for_status()
    api.delete(f"{WORKLOADS}/{workload_of(api, job)['metadata']['name']}").raise_for_status()
