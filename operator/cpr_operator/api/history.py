"""How training went: one entry of `status.history`. It is one short line in JSON, because people read a status, too."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

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
