"""`status.progress`, `tables` and `history`: the progress of training, its dynamic tables, and the model's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from cpr_contract import pinned_data as contract
from cpr_contract.limits import MAX_FILE_NAME, MAX_GROUPS, MAX_LATE_FILES, MAX_METRICS
from cpr_contract.reports import HeldOutScores, TableCounts
from cpr_operator.api.base import Count, MetricName, Model, Seconds, Timestamp, Word, cut

#: The length of a line of `status.history`, which the longest values of all fields fit into.
MAX_LINE = 256
FileName = Annotated[str, BeforeValidator(cut(MAX_FILE_NAME)), Field(max_length=MAX_FILE_NAME)]
_SUMMED = tuple(field.name for field in fields(TableCounts) if field.name != "name")


class GroupScores(Model):
    """The scores of the samples of one group."""

    name: Word
    """The value of the group column, in its first 64 characters; (rest) for all other groups."""
    samples: Count
    """The number of its samples."""
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
    """The step of the model that was scored."""
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
        """Return the scores of a report."""
        return cls.model_validate(asdict(scores))


class Segment(Model):
    """The scores of the newest complete segment of data that arrives, of the first label.

    Each sample is scored before it is trained.
    """

    pin: Count
    """The number of its last pin. All samples of this pin and of earlier ones are trained."""
    first_sample: Count
    """The sample number at which it begins."""
    stop: Count
    """The sample number before which it ends."""
    scored: Count
    """The number of its samples."""
    auc: float | None = None
    """Area under the ROC curve."""
    logloss: float | None = None
    """Log loss in nats."""
    normalised_entropy: float | None = None
    """Log loss divided by that of the best constant."""
    calibration: float | None = None
    """Mean prediction divided by the portion of ones."""

    @classmethod
    def of(cls, scores: contract.SegmentScores) -> Segment:
        """Return the scores of a report."""
        return cls.model_validate(asdict(scores))


class Progress(Model):
    """The progress of training, by the leader's last report."""

    step: Count = 0
    """Complete steps."""
    samples: Count = 0
    """Complete samples."""
    total_samples: Count = 0
    """Total number of samples; 0 until the data is read. Of data that arrives, the pinned ones so far: see data."""
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
    metrics: Annotated[dict[MetricName, float], Field(max_length=MAX_METRICS)] = Field(default={})
    """Other metrics over the same samples, by name: calibration of a single label, or LABEL.auc, LABEL.logloss and
    LABEL.calibration of several, and the network's own metrics."""
    held_out: HeldOut | None = None
    """The last evaluation on held-out rows, if spec.evaluation requests any."""
    segment: Segment | None = None
    """The newest complete segment of data that arrives (spec.data.follow)."""
    eta_seconds: Seconds | None = None
    """Expected remaining time at the present speed. Absent while data that arrives has no end."""
    degraded_samples: Count = 0
    """Samples trained without a shard (onShardLoss Degrade), including those that a rollback undid."""
    replayed_samples: Count = 0
    """Samples that trainers pushed again to replaced shards, by shard."""
    protected_samples: Count | None = None
    """Samples up to which every shard can be restored, by parity or by its last save. Absent without redundancy."""
    updated: Timestamp | None = None
    """When the report was received."""


class PinnedData(Model):
    """The data of a job that follows it (spec.data.follow), by the leader's last report.

    Sample numbers of a batch that no file fills are void.
    """

    pins: Count
    """The number of the newest pin: an object in the store that fixes files and their order."""
    newest_pin_time: Timestamp | None = None
    """When it was written."""
    pinned_samples: Count
    """Sample numbers of all pinned files, void ones included."""
    void_samples: Count
    """Void numbers among them. The accuracy budget is a portion of the others."""
    lag_samples: Count
    """Pinned sample numbers that are not trained."""
    late_files: Count = 0
    """Files whose names sort before files that were pinned earlier. They are trained, too, after those."""
    last_late_files: Annotated[tuple[FileName, ...], Field(max_length=MAX_LATE_FILES)] = ()
    """The last of them, by the last 256 characters of their URIs."""
    ended: bool = False
    """True once no further file is trained."""

    @classmethod
    def of(cls, data: contract.PinnedData, trained: int) -> PinnedData:
        """Return the data of a report, with the lag of a job that has `trained` sample numbers."""
        return cls(
            pins=data.pins,
            newest_pin_time=data.pinned_at or None,
            pinned_samples=data.samples,
            void_samples=data.voids,
            lag_samples=data.lag(trained),
            late_files=data.late_files,
            last_late_files=data.late,
            ended=data.ended,
        )

    @property
    def real_samples(self) -> int:
        """Return the pinned samples that are not void."""
        return self.pinned_samples - self.void_samples


class DynamicTable(Model):
    """A table with the ids Dynamic, summed over all shards.

    `admitted` to `full` count since the present processes of the shards began, including steps that are repeated.
    """

    name: Word
    """The table's name."""
    capacity: Count
    """Rows of the table: spec.model.tables[].rows, rounded up to a multiple of 4096."""
    entries: Count
    """Rows in use."""
    occupancy_percent: Annotated[int, Field(ge=0, le=100)]
    """entries / capacity in percent, rounded down."""
    waiting: Count = 0
    """Ids that are counted, and not admitted yet, with admission.minSteps above 1."""
    admitted: Count = 0
    """Ids that got a row."""
    evicted: Count = 0
    """Ids that lost their row to a new one."""
    expired: Count = 0
    """Ids that had expired before a new one took their row."""
    dropped: Count = 0
    """Gradients that were dropped, because the step had gradients for all ids in the places of the id."""
    full: Count = 0
    """New ids that found all of their places in use: they evicted an id, or their gradient was dropped."""
    updated: Timestamp
    """When the shards' reports were received."""

    @classmethod
    def of(cls, parts: Sequence[TableCounts], now: float) -> DynamicTable:
        """Return the sum of the counts of a table on all shards, at least one, in reports received at `now`."""
        sums = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
        capacity = sums.pop("slots")
        percent = 100 * sums["entries"] // max(capacity, 1)
        return cls(name=parts[0].name, capacity=capacity, occupancy_percent=percent, updated=now, **sums)


class HistoryPoint(NamedTuple):
    """The state of a job at one time: an entry of `status.history`. Unknown values are None.

    In JSON it is one short line, because people read a status, too.
    """

    time: float
    """The time of the leader's report, in seconds since the epoch."""
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
    """The number of shards."""
    trainers: int
    """The number of trainers."""
    generation: int
    """Rises with each rollback."""


#: A `HistoryPoint` in Python, one line in JSON.
Point = Annotated[
    HistoryPoint,
    BeforeValidator(lambda text: [word or None for word in text.split(",")] if isinstance(text, str) else text),
    PlainSerializer(
        lambda point: ",".join("" if value is None else str(value) for value in point),
        return_type=str,
        when_used="json",
    ),
    WithJsonSchema({"type": "string", "maxLength": MAX_LINE}),
]
