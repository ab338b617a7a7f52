"""The objects around a job's pods: the handshake key, disruption budgets, the network policy, and the PodGroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_contract import env
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Status
from cpr_operator.cluster.certificates import KeyPair
from cpr_operator.desired.names import JobId, key_secret_name, metadata

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IngressSources:
    """Sources that may reach the HTTP port of a job's pods: the operator's namespace, and others."""

    namespace: str
    others: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Certificates:
    """The CA of an encrypted job, the certificates above it if an issuer signed it, and that of the operator (PEM)."""

    authority: KeyPair
    operator: str
    chain: str = ""


def key_secret(job: JobId, key: str, digest: str, certificates: Certificates | None = None) -> Manifest:
    """The Secret with the job's key, named after its digest. It is created once and never read back."""
    encrypted = {}
    if certificates is not None:
        encrypted = {
            env.CA_NAME: certificates.authority.certificate,
            env.CA_KEY_NAME: certificates.authority.key,
            env.OPERATOR_NAME: certificates.operator,
            **({env.CA_CHAIN_NAME: certificates.chain} if certificates.chain else {}),
        }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, key_secret_name(job, digest)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {env.KEY_NAME: key, **encrypted},
    }


def disruption_budgets(job: JobId, status: Status, *, by_uid: bool) -> tuple[Manifest, ...]:
    """The budgets of both roles: one pod of a role may be drained at a time.

    Pods that wait for a lost member are not ready, and have what its successor needs. `unhealthyPodEvictionPolicy:
    AlwaysAllow` would let a drain evict all of them. `by_uid`: all pods have the uid label, which pods of version 0.1.0
    lack.
    """
    return tuple(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(job, f"{job.stem}-{role}"),
            "spec": {
                "minAvailable": replicas - 1,  # a percentage would need a scale subresource
                "selector": {"matchLabels": {**_members(job, by_uid=by_uid), env.LABEL_ROLE: role}},
            },
        }
        for role, replicas in (("trainer", len(status.trainers)), ("shard", len(status.shards)))
    )


def pod_group(job: JobId, spec: CPRJobSpec, status: Status) -> Manifest | None:
    """The group of the trainers and shards, which the scheduler places all at once or not at all; None without one.

    A pod that replaces a member joins it. Its pods are preempted one by one, because each comes back alone.
    """
    name = status.runtime.pod_group if status.runtime else ""
    if not name:
        return None
    gang = {"minCount": len(status.trainers) + len(status.shards)}
    priority_class = (spec.trainers.template.get("spec") or {}).get("priorityClassName")
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(job, name),
        "spec": {
            "schedulingPolicy": {"gang": gang},
            "disruptionMode": {"single": {}},
            **({"priorityClassName": priority_class} if priority_class else {}),
        },
    }


def network_policy(job: JobId, sources: IngressSources | None, *, by_uid: bool) -> Manifest:
    """Allow the job's pods to reach each other on any port, because Gloo picks its own, and `sources` on the HTTP port.

    Without `sources` every pod may reach the HTTP port, because the operator runs outside the cluster.
    """
    members = {"matchLabels": _members(job, by_uid=by_uid)}
    http = env.DEFAULT_PORT_BASE + env.HTTP_PORT
    allowed: list[Mapping[str, Any]] = [{"namespaceSelector": {}}]
    if sources is not None:
        own = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": sources.namespace}}}
        allowed = [own, *sources.others]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.stem),
        "spec": {
            "podSelector": members,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": members}]},
                {"from": allowed, "ports": [{"protocol": "TCP", "port": http}]},
            ],
        },
    }


def _members(job: JobId, *, by_uid: bool) -> dict[str, str]:
    return {env.LABEL_JOB: job.name} | ({env.LABEL_JOB_UID: job.uid} if by_uid else {})
