"""The objects around a job's pods: the handshake key, disruption budgets, and the network policy."""

from __future__ import annotations

from typing import Any

from cpr_contract import env
from cpr_operator.desired.names import (
    JobId,
    Role,
    disruption_budget_name,
    key_secret_name,
    metadata,
    network_policy_name,
)

Manifest = dict[str, Any]


def key_secret(job: JobId, key: str) -> Manifest:
    """The Secret with the job's key. It is created once and never read back, so `key` counts the first time only."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, key_secret_name(job)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {env.KEY_NAME: key},
    }


def disruption_budget(job: JobId, role: Role, replicas: int) -> Manifest:
    """One pod of a role may be drained at a time; an integer, because a percentage would need a scale subresource."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, disruption_budget_name(job, role)),
        "spec": {
            "minAvailable": replicas - 1,
            "selector": {"matchLabels": {env.LABEL_JOB: job.name, env.LABEL_ROLE: role}},
        },
    }


def network_policy(job: JobId) -> Manifest:
    """Pods of the job reach each other on any port (the dense group picks its own); all others only the HTTP port."""
    members = {"matchLabels": {env.LABEL_JOB: job.name}}
    http = env.DEFAULT_PORT_BASE + env.HTTP_PORT
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, network_policy_name(job)),
        "spec": {
            "podSelector": members,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": members}]},
                {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": http}]},
            ],
        },
    }


def guards(job: JobId, trainers: int, shards: int) -> tuple[Manifest, ...]:
    """All objects beside the key that stand while the job has pods."""
    return (
        network_policy(job),
        disruption_budget(job, "trainer", trainers),
        disruption_budget(job, "shard", shards),
    )
