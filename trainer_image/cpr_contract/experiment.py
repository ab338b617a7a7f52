"""What `cprjob calibrate` and `cprjob bench priority` ask `python -m cpr_trainer experiment` to try, and are told.

Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
`CPR_SPEC`, an `Experiment` as JSON on the standard input; the answer is one `TrialReport` a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.spec import Strategy


@dataclass(frozen=True, slots=True)
class ShardLoss:
    """A failure: once the portion `at` of the run is trained, `shards` go back to how they were at `back_to`.

    0 <= back_to < at <= 1; both are rounded to whole steps.
    """

    shards: tuple[int, ...]
    back_to: float
    at: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Once the portion `at` of the run is trained, `shards` go back to what is saved of them; 0 < at <= 1."""

    shards: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Saving:
    """Which rows are saved when, and the failures that show what that is worth. Portions are rounded to whole steps.

    Full saves all rows that changed, once in every `interval` (a portion of the run). Any other strategy does so once
    in `anchors` intervals, and between that, every `fraction` of an interval, saves the rows that it holds for the most
    important: so many of them that as many rows are written in all as with Full.
    """

    strategy: Strategy
    interval: float
    anchors: int
    fraction: float
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run over the job's data. `seed` stands in for `data.seed` as the seed of the order and the first values.

    losses: what is lost, whatever might have been saved. saving: what is saved, and what is lost in spite of it.
    """

    seed: int
    losses: tuple[ShardLoss, ...]
    saving: Saving | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """Runs of one job, one after another, its tables divided into `shards`."""

    shards: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """What saving took. rows_written: over all saves. row_updates: of the whole run, lost ones included.

    tracker_bytes: memory of all shards' trackers of the strategy.
    """

    rows_written: int
    row_updates: int
    tracker_bytes: int


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
    saved: Saved | None = None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Where trial number `trial` (from 0) stands; `outcome` comes with its last report."""

    trial: int
    samples: int
    total_samples: int
    outcome: Outcome | None
