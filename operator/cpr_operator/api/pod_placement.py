"""The placement of pods, as given by the queue that admitted the job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_operator.api.base import Model, Word

#: Keys and values of node labels, with their maximum length.
Label = Annotated[str, Field(max_length=317)]


class Toleration(Model):
    """A toleration of a pod, as Kubernetes defines it."""

    key: Label = ""
    """The key of the taint. Empty: every key."""
    operator: Literal["", "Exists", "Equal", "Lt", "Gt"] = ""
    """The comparison of the value. Empty: Equal."""
    value: Label = ""
    """The value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The effect of the taint. Empty: every effect."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is tolerated; absent: without limit."""


class Placement(Model):
    """The node selector and the tolerations that the queue's flavors add to the pods of one role."""

    role: Literal["trainer", "shard", "spare", "publisher"]
    """trainer, shard, spare or publisher."""
    node_selector: Annotated[dict[Label, Label], Field(default={}, max_length=64)]
    """Node labels that the pods require."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=64)] = ()
    """Taints that the pods tolerate."""


class Quota(Model):
    """The quota that the job's pods run under."""

    queue: Annotated[str, Field(max_length=253)]
    """The LocalQueue, by the label kueue.x-k8s.io/queue-name."""
    cluster_queue: Word = ""
    """The ClusterQueue that admitted the job."""
    placements: Annotated[tuple[Placement, ...], Field(max_length=4)] = ()
    """The placement of the pods of each role."""
