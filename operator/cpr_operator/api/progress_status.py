"""`status.progress` and `status.history`: how far training is, how good the model, and how it went."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from cpr_contract.reports import HeldOutScores
from cpr_operator.api.base import MAX_GROUPS, MAX_METRICS, Count, FigureName, Model, Seconds, Timestamp, Word


class GroupScores(Model):
    """The scores of the samples of one group."""

    name: Word
    """The value of the group column, in its first 64 characters; (rest) of all groups that are not told one by one."""
    samples: Count
    """How many samples it has."""
    auc: float | None = None
    """Area under the ROC curve."""
    logloss: float | None = None
    """Log loss in nats."""
    normalised_entropy: float | None = None
    """Log loss divided by that of the best constant."""
    calibration: float | None = None
    """Mean prediction divided by the portion of ones."""


class HeldOut(Model):
    """An evaluation on held-out rows, of the first label."""

    step: Count
    """The step whose model was scored."""
    samples: Count
    """The samples that it was trained on."""
    scored: Count
    """The held-out samples that it was scored on."""
    auc: float | None = None
    """Area under the ROC curve."""
    logloss: float | None = None
    """Log loss in nats."""
    normalised_entropy: float | None = None
    """Log loss divided by that of the best constant: below 1 if the model has learnt something."""
    calibration: float | None = None
    """Mean prediction divided by the portion of ones: above 1 if the model predicts too many."""
    gauc: float | None = None
    """Mean AUC of the groups that have one, weighted by their samples, with spec.evaluation.groupBy."""
    groups: Annotated[tuple[GroupScores, ...], Field(max_length=MAX_GROUPS)] = ()
    """The scores of the largest groups."""
    rest: GroupScores | None = None
    """The scores of all samples of the other groups together."""

    @classmethod
    def of(cls, scores: HeldOutScores) -> HeldOut:
        """Those of a report."""
        return cls.model_validate(asdict(scores))


class Progress(Model):
    """The progress of training, by the leader's last report."""

    step: Count = 0
    """Complete steps."""
    samples: Count = 0
    """Complete samples."""
    total_samples: Count = 0
    """Total number of samples; 0 until the data is read."""
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """samples / totalSamples in percent, rounded down."""
    samples_per_second: Seconds | None = None
    """Training speed over the last seconds."""
    loss: float | None = None
    """Training loss, smoothed."""
    auc: float | None = None
    """Area under the ROC curve. Each sample is scored before it is trained, and the first 20 % are left out."""
    logloss: float | None = None
    """Log loss over the same samples."""
    metrics: Annotated[dict[FigureName, float], Field(max_length=MAX_METRICS)] = Field(default={})
    """Other figures over the same samples, by name: calibration of a single label, or LABEL.auc, LABEL.logloss and
    LABEL.calibration of several, and the network's own metrics."""
    held_out: HeldOut | None = None
    """The last evaluation on held-out rows, if spec.evaluation asks for any."""
    eta_seconds: Seconds | None = None
    """Expected remaining time at the present speed."""
    degraded_samples: Count = 0
    """Samples trained without a shard (onShardLoss Degrade), including those that a rollback undid."""
    replayed_samples: Count = 0
    """Samples that trainers pushed again to replaced shards, by shard."""
    protected_samples: Count | None = None
    """Samples up to which every shard can be had again, by parity or by its last save. Absent without redundancy."""
    updated: Timestamp | None = None
    """When the report was received."""


# How training went: one entry of `status.history`. It is one short line in JSON, because people read a status, too.


#: Of one line; the longest figures of all fields fit.
MAX_LINE = 256


class PointFigures(NamedTuple):
    """How a job stood at one moment. Figures that were not known then are None."""

    time: float
    """When the leader's report came, in seconds since the epoch."""
    samples: int
    """Complete samples."""
    samples_per_second: float | None
    """Training speed while nothing is saved."""
    loss: float | None
    """Training loss of the last steps."""
    logloss: float | None
    """Log loss by progressive validation."""
    auc: float | None
    """AUC by progressive validation."""
    calibration: float | None
    """Sum of predictions over sum of labels, by progressive validation."""
    spent: float | None
    """Portion of all samples that is lost."""
    saved_samples: int
    """Samples in the newest anchor."""
    interval_seconds: float | None
    """Planned training time between two cuts."""
    mode: Literal["Partial", "Full"] | None
    """The plan's mode."""
    shards: int
    """How many shards the job had."""
    trainers: int
    """How many trainers the job had."""
    generation: int
    """Rises with each rollback."""


def _to_line(point: PointFigures) -> str:
    return ",".join("" if value is None else str(value) for value in point)


def _from_line(value: object) -> object:
    """The fields of a line, for pydantic to judge; anything else unchanged."""
    return [word or None for word in value.split(",")] if isinstance(value, str) else value


#: A `PointFigures` in Python, one line in JSON.
Point = Annotated[
    PointFigures,
    BeforeValidator(_from_line),
    PlainSerializer(_to_line, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "maxLength": MAX_LINE}),
]
