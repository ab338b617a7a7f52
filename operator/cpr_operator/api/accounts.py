"""What `status` holds of costs: the plan, the budget and its ledger, what was measured, what it all cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_operator.api.model import (
    MAX_RANGES,
    MAX_SHARDS,
    Count,
    Model,
    Portion,
    Seconds,
    Sentence,
    Timestamp,
    Word,
)

#: Disjoint, sorted ranges [first, end) of samples.
Ranges = Annotated[tuple[tuple[Count, Count], ...], Field(max_length=MAX_RANGES)]


class Plan(Model):
    """The plan that keeps the accuracy budget at the least cost, and why."""

    mode: Literal["Partial", "Full"]
    """Partial: a lost shard goes back alone. Full: any loss of samples rolls the whole job back."""
    interval_seconds: Seconds
    """Planned training time between two cuts."""
    priority_interval_seconds: Seconds = 0
    """Planned time between two saves of each shard's most important rows; 0: none."""
    stored_bits: Literal[32, 8, 4, 3, 2] = 32
    """Bits that saves store of each value of a row; 32: rows as they are."""
    expected_lost_samples: Seconds = 0
    """Samples (counted as a portion of all shards) expected to be lost by the end of the job."""
    expected_overhead: Seconds = 0
    """Expected time for saves and recoveries, as a portion of the useful training time."""
    inputs: Annotated[dict[Word, float], Field(max_length=32)] = Field(default={})
    """The figures that the plan was computed from."""
    reason: Sentence = ""
    """Why this plan."""


class Budget(Model):
    """The accuracy budget as portions of all samples, for people. The account itself is `ledger`."""

    limit: Portion
    """The portion of samples that may be lost."""
    spent: Portion = 0
    """The portion that is lost."""
    reserved: Portion = 0
    """The portion set aside for recoveries under way."""
    remaining: Portion
    """limit - spent - reserved."""
    running_sum: Annotated[float, Field(ge=0)] = 0
    """The sum that the CPR paper calls PLS: what every recovery lost, added up. It differs from `spent` where samples
    were lost again, or where a rollback took losses back."""
    rollbacks: Count = 0
    """How often the whole job went back to an anchor."""


class Ledger(Model):
    """The account of lost samples, in integers."""

    total_samples: Count = 0
    """Samples that the job trains in all; 0 until the data is read."""
    limit_sample_shards: Count = 0
    """The budget: samples times shards that may be lost, rounded down."""
    running_sample_shards: Count = 0
    """What every recovery lost, added up: neither a repeated loss nor a rollback lowers it."""
    carried_sample_shards: Count = 0
    """What was lost before the number of shards changed, in samples times shards of today, rounded up."""
    ranges: Annotated[
        tuple[Ranges, ...],
        Field(max_length=MAX_SHARDS),
    ] = ()
    """For each shard the samples that it lost, as disjoint, sorted ranges [first, end)."""


class Counted(Model):
    """What is taken into account of the leader's own counters, which begin at 0 with each leader and generation."""

    leader: Word = ""
    """The process whose counters these are, and its generation."""
    saves: Count = 0
    """Its committed cuts."""
    save_seconds: Seconds = 0
    """Training time that it lost to saves."""
    degraded_samples: Count = 0
    """Samples that it trained without a shard."""


class Policy(Model):
    """What the job has learnt about its failures and costs; absent where nothing is known yet.

    The failure rate is believed to have a gamma distribution with shape alpha and rate betaSeconds, begun with
    `failurePolicy.expectedJobMtbfSeconds`; its mean is alpha / betaSeconds. Costs are running means: until they are
    measured, the plan uses guesses and says so.
    """

    alpha: Seconds | None = None
    """Failures: those that were expected beforehand, and each that took the state of a shard."""
    beta_seconds: Seconds | None = None
    """Seconds of training that they came in: those assumed beforehand, and each in which training went on."""
    lost_per_failure: Seconds | None = None
    """The mean number of shards that a failure took."""
    updated: Timestamp | None = None
    """When alpha, betaSeconds or lostPerFailure last changed."""
    save_stall_seconds: Seconds | None = None
    """Training time lost to one cut: the stall, and slower steps while it was saved."""
    commit_seconds: Seconds | None = None
    """From a cut to its committed anchor."""
    load_seconds: Seconds | None = None
    """How long the slowest shard of a recovery loaded its save."""
    reschedule_seconds: Seconds | None = None
    """The rest of a recovery: until the loss was seen, and new processes were there."""
    samples_per_second: Seconds | None = None
    """Training speed while nothing is saved."""
    counted: Counted = Counted()
    """The leader's counters at the last update."""


class Overhead(Model):
    """Time that fault tolerance has cost so far, by kind."""

    save_seconds: Seconds = 0
    """Training stood still for saves, or was slower while they were written."""
    load_seconds: Seconds = 0
    """Training waited for saves to be loaded."""
    lost_seconds: Seconds = 0
    """Training that a rollback undid and that was done again."""
    reschedule_seconds: Seconds = 0
    """Training waited for a new process."""
