"""How the model is scored while it trains, and what that may end: `spec.evaluation`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_contract.spec import StopMetric
from cpr_operator.api.base import ColumnName, SpecModel, Uri


class EarlyStop(SpecModel):
    """When to end training because the model gets no better. The best model is the job's."""

    metric: StopMetric
    """What tells how good a model is, of the first label. AUC and GAUC are to rise, the others are to fall. GAUC needs
    groupBy. If the labels or groups of the scored rows leave the metric undefined, the job fails with BadData."""
    patience: Annotated[int, Field(ge=1, le=1000)]
    """The job ends after so many evaluations in a row of which none is the best."""
    min_improvement: Annotated[float, Field(ge=0, le=1)] = 0
    """An evaluation is the best only if it is better than the best before by more than this."""


class Evaluation(SpecModel):
    """Evaluation on held-out rows while the job trains: AUC, log loss, normalised entropy and calibration."""

    every_samples: Annotated[int, Field(ge=0, le=2**50)] = 0
    """After each so many trained samples, all trainers score the model on rows that data.holdOut keeps from training,
    or on those of `uri`. 0: not while the job trains."""
    uri: Uri | None = None
    """Location of data of its own to score the model on, in the format and with the columns of spec.data. Like that, it
    is the same as long as the job lives. `cprjob evaluate` scores all of it."""
    samples: Annotated[int, Field(ge=1, le=2**26)] = 100_000
    """How many held-out rows to score, the first of them. Each trainer keeps its part of them in memory."""
    group_by: ColumnName | None = None
    """A column of texts or integers, such as the user. The model is scored by its values as well: each of the 20
    largest groups, and GAUC, the mean AUC of all groups weighted by their samples. All trainers then read all rows that
    are scored."""
    early_stop: EarlyStop | None = None
    """When to end training because the model gets no better. Training then waits at each evaluation until the model is
    saved. Default: all samples are trained, and the last model is the job's."""
