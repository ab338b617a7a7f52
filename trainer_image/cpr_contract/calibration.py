"""What `cprjob calibrate` asks `python -m cpr_trainer calibrate` to try, and is told.

Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
`CPR_SPEC`, an `Experiment` as JSON on the standard input; the answer is one `TrialReport` a line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardLoss:
    """A failure: once the portion `at` of the run is trained, `shards` go back to how they were at `back_to`.

    0 <= back_to < at <= 1; both are rounded to whole steps.
    """

    shards: tuple[int, ...]
    back_to: float
    at: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One run over the job's data. `seed` stands in for `data.seed` as the seed of the order and the first values."""

    seed: int
    losses: tuple[ShardLoss, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Runs of one job, one after another, its tables divided into `shards`."""

    shards: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial ended in.

    auc, log_loss (nats): by progressive validation, as a job's status has them; None if the samples do not allow one.
    lost_sample_shards: samples that a shard lost, summed over shards. pls: the same as a portion of all samples of all
    shards. lost_row_updates: updates of rows that went with them.
    """

    auc: float | None
    log_loss: float | None
    lost_sample_shards: int
    pls: float
    lost_row_updates: int


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Where trial number `trial` (from 0) stands; `outcome` comes with its last report."""

    trial: int
    samples: int
    total_samples: int
    outcome: Outcome | None
