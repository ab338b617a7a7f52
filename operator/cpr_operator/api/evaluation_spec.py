"""`spec.evaluation`: evaluation on held-out rows while the job trains, and early stopping."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_contract.spec import StopMetric
from cpr_operator.api.base import ColumnName, SpecModel, Uri


class EarlyStop(SpecModel):
    """Early stopping: training ends if the model does not improve. The result is the best model."""

    metric: StopMetric
    """The metric of the first label. AUC and GAUC should rise, the others should fall. GAUC needs
    groupBy. If the labels or groups of the scored rows leave the metric undefined, the job fails with BadData."""
    patience: Annotated[int, Field(ge=1, le=1000)]
    """The job ends after this number of consecutive evaluations without a new best one."""
    min_improvement: Annotated[float, Field(ge=0, le=1)] = 0
    """An evaluation is the best only if it is better than the best before by more than this."""


class Evaluation(SpecModel):
    """Evaluation on held-out rows while the job trains: AUC, log loss, normalised entropy and calibration."""

    every_samples: Annotated[int, Field(ge=0, le=2**50)] = 0
    """After each multiple of this number of trained samples, all trainers score the model on rows that data.holdOut
    keeps from training, or on those of `uri`. 0: not while the job trains."""
    uri: Uri | None = None
    """Location of data of its own to score the model on, in the format and with the columns of spec.data. Like that, it
    must not change during the job. `cprjob evaluate` scores all of it."""
    samples: Annotated[int, Field(ge=1, le=2**26)] = 100_000
    """Number of held-out rows to score, from the first one. Each trainer keeps its part of them in memory."""
    group_by: ColumnName | None = None
    """A column of texts or integers, such as the user. The model is scored by its values as well: each of the 20
    largest groups, and GAUC, the mean AUC of all groups weighted by their samples. All trainers then read all rows that
    are scored."""
    early_stop: EarlyStop | None = None
    """Early stopping. Training then waits at each evaluation until the model is saved. Default: all samples are
    trained, and the result is the last model."""
