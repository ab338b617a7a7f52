"""What `cprjob bench priority` asks `python -m cprjob_bench priority` to try, and is told.

Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
`CPR_SPEC`, a `SavingExperiment` as JSON on the standard input; the answer is one `SavingReport` a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.requests import TrialReport
from cpr_contract.spec import Strategy


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
class SavingTrial:
    """One run over the job's data. `seed` stands in for `data.seed` as the seed of the order and the first values.

    saving: what is saved, and what is lost in spite of it; None for a run without failures.
    """

    seed: int
    saving: Saving | None = None


@dataclass(frozen=True, slots=True)
class SavingExperiment:
    """Runs of one job, one after another, its tables divided into `shards`."""

    shards: int
    trials: tuple[SavingTrial, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """What saving took. rows_written: over all saves. row_updates: of the whole run, lost ones included.

    tracker_bytes: memory of all shards' trackers of the strategy.
    """

    rows_written: int
    row_updates: int
    tracker_bytes: int


@dataclass(frozen=True, slots=True)
class SavingReport:
    """Where a trial stands. `saved` comes with the outcome of one that saves."""

    report: TrialReport
    saved: Saved | None = None
