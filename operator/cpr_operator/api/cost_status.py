"""The parts of `status` about costs: the plan, the budget and its ledger, measurements, and overhead."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.choices import Bits
from cpr_contract.limits import MAX_RANGES, MAX_SHARDS
from cpr_operator.api.base import Count, Model, Portion, Seconds, Sentence, Timestamp, Word

#: Disjoint, sorted ranges [first, end) of samples.
Ranges = Annotated[tuple[tuple[Count, Count], ...], Field(max_length=MAX_RANGES)]


class Plan(Model):
    """The plan that keeps the accuracy budget at the least cost, and why."""

    mode: Literal["Partial", "Full"]
    """Partial: only a lost shard goes back. Full: any loss of samples rolls the whole job back."""
    interval_seconds: Seconds
    """Planned training time between two cuts."""
    priority_interval_seconds: Seconds = 0
    """Planned time between two saves of each shard's most important rows; 0 for none."""
    stored_bits: Bits = 32
    """Bits per value of a row in saves; 32 is exact."""
    expected_lost_samples: Seconds = 0
    """Samples expected to be lost by the end of the job; a loss counts by the portion of the shards it hits."""
    expected_overhead: Seconds = 0
    """Expected time for saves and recoveries, as a fraction of the useful training time."""
    inputs: Annotated[dict[Word, float], Field(max_length=32)] = Field(default={})
    """The inputs from which the plan was computed."""
    reason: Sentence = ""
    """Why this plan."""


class Budget(Model):
    """The accuracy budget as portions of all samples, for people. The exact account is `ledger`."""

    limit: Portion
    """The portion of samples that may be lost."""
    spent: Portion = 0
    """The portion that is lost."""
    reserved: Portion = 0
    """The portion reserved for recoveries in progress."""
    remaining: Portion
    """limit - spent - reserved."""
    running_sum: Annotated[float, Field(ge=0)] = 0
    """The losses of all recoveries added up, which the CPR paper calls PLS. It differs from `spent` if samples were
    lost again, or if a rollback undid losses."""
    rollbacks: Count = 0
    """The number of rollbacks of the whole job to an anchor."""


class Ledger(Model):
    """The account of lost samples, in integers."""

    total_samples: Count = 0
    """Total number of samples of the job; 0 until the data is read. Of data that arrives, the samples pinned so far."""
    limit_sample_shards: Count = 0
    """The budget in sample-shards (samples times shards), rounded down."""
    running_sample_shards: Count = 0
    """The losses of all recoveries added up. Repeated losses count again, and a rollback does not lower it."""
    carried_sample_shards: Count = 0
    """Losses from before the number of shards changed, in today's sample-shards, rounded up, and those of samples
    before foldedSamples."""
    folded_samples: Count = 0
    """The sample number before which losses of data that arrives are a number, and no ranges."""
    window_samples: Count = 0
    """spec.accuracyBudget.window; 0 without one."""
    window_limit_sample_shards: Count = 0
    """The sample-shards that may be lost in any window."""
    ranges: Annotated[
        tuple[Ranges, ...],
        Field(max_length=MAX_SHARDS),
    ] = ()
    """The samples that each shard lost, as disjoint, sorted ranges [first, end)."""


class Counted(Model):
    """The leader's counters as last added to the totals. They restart at 0 with each leader and generation."""

    leader: Word = ""
    """The process that reported the counters, and its generation."""
    saves: Count = 0
    """Number of committed cuts."""
    save_seconds: Seconds = 0
    """Training time lost to saves."""
    degraded_samples: Count = 0
    """Samples trained without a shard."""


class Policy(Model):
    """Estimates of the job's failures and costs; absent until measured.

    The failure rate has a gamma distribution with shape alpha, rate betaSeconds and mean alpha / betaSeconds. Its prior
    comes from `failurePolicy.expectedJobMtbfSeconds`. Costs are running means. Until they are measured, the plan uses
    guesses and marks them.
    """

    alpha: Seconds | None = None
    """Failures: those of the prior, and each that lost the state of a shard."""
    beta_seconds: Seconds | None = None
    """Seconds of training: those of the prior, and those observed."""
    lost_per_failure: Seconds | None = None
    """Mean number of shards lost per failure."""
    updated: Timestamp | None = None
    """When alpha, betaSeconds or lostPerFailure last changed."""
    save_stall_seconds: Seconds | None = None
    """Training time lost to one cut: the pause, and slower steps during its save."""
    commit_seconds: Seconds | None = None
    """Time from a cut to its committed anchor."""
    load_seconds: Seconds | None = None
    """Time that the slowest shard of a recovery took to load its save."""
    reschedule_seconds: Seconds | None = None
    """The rest of a recovery: detecting the loss and starting new processes."""
    samples_per_second: Seconds | None = None
    """Training speed without a save in progress."""
    replay_ratio: Seconds | None = None
    """Seconds that it takes trainers to push one second of training again."""
    counted: Counted = Counted()
    """The leader's counters at the last update."""


class Overhead(Model):
    """Time that fault tolerance has cost so far, by kind."""

    save_seconds: Seconds = 0
    """Training paused for saves, or was slower during them."""
    load_seconds: Seconds = 0
    """Training waited for saves to be loaded."""
    lost_seconds: Seconds = 0
    """Training that was repeated after a rollback."""
    reschedule_seconds: Seconds = 0
    """Training waited for a new process."""
