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
    rollbacks: Count = 0
    """How often the whole job went back to an anchor."""


class Ledger(Model):
    """The account of lost samples, in integers."""

    total_samples: Count = 0
    """Samples that the job trains in all; 0 until the data is read."""
    limit_sample_shards: Count = 0
    """The budget: samples times shards that may be lost, rounded down."""
    ranges: Annotated[
        tuple[Ranges, ...],
        Field(max_length=MAX_SHARDS),
    ] = ()
    """For each shard the lost samples as disjoint, sorted ranges [first, end)."""


class Policy(Model):
    """Measured costs; absent until measured, then the plan uses them instead of its stated guesses."""

    save_stall_seconds: Seconds | None = None
    """Training time lost to one cut."""
    commit_seconds: Seconds | None = None
    """From a cut to its committed anchor."""
    load_seconds: Seconds | None = None
    """From the start of a replaced shard's process to its being ready."""
    reschedule_seconds: Seconds | None = None
    """From the loss of a pod to the start of its successor's process."""
    samples_per_second: Seconds | None = None
    """Training speed."""


class Overhead(Model):
    """Time that fault tolerance has cost so far, by kind."""

    save_seconds: Seconds = 0
    """Training stood still for saves."""
    load_seconds: Seconds = 0
    """Training waited for saves to be loaded."""
    lost_seconds: Seconds = 0
    """Training that a rollback undid and that was done again."""
    reschedule_seconds: Seconds = 0
    """Training waited for a new process."""
    leader_save_seconds: Seconds = 0
    """The part of saveSeconds that the present leader's process has reported."""
