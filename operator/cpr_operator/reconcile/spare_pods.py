"""Which pods are spares, and which were: the status alone says so, whatever their labels do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cpr_contract import env
from cpr_operator.api.status import Status
from cpr_operator.cluster.views import PodView
from cpr_operator.failures import Failure, classify
from cpr_operator.reconcile.types import ReconcileInput


def is_spare(pod: PodView) -> bool:
    """Whether the pod has the labels of a spare, which it keeps until it is told what it is."""
    return pod.role == env.ROLE_SPARE


def as_members(pods: Sequence[PodView], status: Status) -> tuple[PodView, ...]:
    """The pods as the status knows them: one that was promoted and not told yet is its shard all the same."""
    named = {shard.pod: shard for shard in status.shards}

    def known(pod: PodView) -> PodView:
        shard = named.get(pod.name) if is_spare(pod) else None
        if shard is None:
            return pod
        return replace(pod, role=env.ROLE_SHARD, index=shard.index, incarnation=shard.incarnation)

    return tuple(map(known, pods))


def waiting(observed: ReconcileInput) -> tuple[PodView, ...]:
    """The pods of the spares that the status names."""
    names = {spare.pod for spare in observed.before.spares}
    return tuple(pod for pod in observed.pods if pod.name in names and is_spare(pod))


def spare_is_needed(observed: ReconcileInput) -> bool:
    """Whether a shard's pod is lost, so that a spare's answer saves the time in which a new pod would start."""
    pods = {pod.uid: pod for pod in observed.pods}
    lost = (classify(pods.get(shard.uid)) for shard in observed.before.shards if shard.uid)
    return any(isinstance(trouble, Failure) for trouble in lost)


def superfluous(observed: ReconcileInput, after: Status) -> Iterator[PodView]:
    """Pods with the labels of a spare that the status does not name: too many, ended, or fenced off.

    The latter were promoted, and replaced before their labels said so.
    """
    named = {spare.pod for spare in after.spares} | {shard.pod for shard in after.shards}
    for pod in observed.pods:
        if is_spare(pod) and pod.deleting_until is None and pod.name not in named:
            yield pod
