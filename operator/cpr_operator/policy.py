"""The plan: which recovery, and how often to save, so that the accuracy budget holds at the least cost.

The equations are those of CPR (Maeng et al., "Understanding and Improving Failure Tolerant Training for Deep Learning
Recommendation with Partial Recovery", MLSys 2021, section 4), in its symbols: O_save, O_load, O_res are the times to
save, load and reschedule, T_save the interval, T_fail the mean time between failures, N the shards, PLS the portion of
lost samples. What goes beyond the paper is marked "derived".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

#: Shorter intervals are saving all the time.
MIN_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What saves and recoveries cost, in seconds of training; the defaults are guesses until it is measured.

    `save_stall_s` (O_save) is training time lost to one cut, `commit_s` the time from a cut to its committed anchor,
    during which training goes on.
    """

    save_stall_s: float = 0.1
    commit_s: float = 1.0
    load_s: float = 5.0
    reschedule_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a plan depends on. `limit`, `spent` and `reserved` are portions of all samples.

    `total_samples` is 0 and `samples_per_s` None until they are known: then the cap by the remaining budget is left
    out. `fixed_interval_s` is set by a user who chose the interval.
    """

    mode: Literal["Auto", "Partial", "Full"]
    limit: float
    shards: int
    mtbf_s: float
    spent: float = 0.0
    reserved: float = 0.0
    fixed_interval_s: float | None = None
    total_samples: int = 0
    samples_per_s: float | None = None
    costs: Costs = Costs()

    @property
    def remaining(self) -> float:
        """What is left of the budget, as a portion of all samples."""
        return max(self.limit - self.spent - self.reserved, 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision. `expected_pls` and `expected_overhead` are portions, of all samples and of the training time."""

    mode: Literal["Partial", "Full"]
    interval_s: float
    expected_pls: float
    expected_overhead: float
    inputs: Inputs
    reason: str

    @property
    def expected_lost_samples(self) -> float:
        """Samples expected to be lost in the whole job, each counted as the portion of shards that lose it."""
        return self.expected_pls * self.inputs.total_samples

    def figures(self) -> dict[str, float]:
        """The figures that the plan was computed from, as `status.plan.inputs` shows them."""
        costs = self.inputs.costs
        return {
            "limit": self.inputs.limit,
            "spent": self.inputs.spent,
            "reserved": self.inputs.reserved,
            "shards": float(self.inputs.shards),
            "mtbfSeconds": self.inputs.mtbf_s,
            "totalSamples": float(self.inputs.total_samples),
            "samplesPerSecond": self.inputs.samples_per_s or 0.0,
            "saveStallSeconds": costs.save_stall_s,
            "commitSeconds": costs.commit_s,
            "loadSeconds": costs.load_s,
            "rescheduleSeconds": costs.reschedule_s,
        }


def full_overhead(interval_s: float, mtbf_s: float, costs: Costs) -> float:
    """O_full / T_total = O_save/T_save + (O_load + T_save/2 + O_res)/T_fail."""
    return costs.save_stall_s / interval_s + (costs.load_s + interval_s / 2 + costs.reschedule_s) / mtbf_s


def partial_overhead(interval_s: float, mtbf_s: float, costs: Costs) -> float:
    """O_part / T_total = O_save/T_save + (O_load + O_res)/T_fail: nothing is trained twice."""
    return costs.save_stall_s / interval_s + (costs.load_s + costs.reschedule_s) / mtbf_s


def full_interval(save_stall_s: float, mtbf_s: float) -> float:
    """T_save,full = sqrt(2 * O_save * T_fail), where O_full is least."""
    return math.sqrt(2 * save_stall_s * mtbf_s)


def expected_pls(interval_s: float, mtbf_s: float, shards: int, commit_s: float = 0.0) -> float:
    """E[PLS] = T_save / (2 * T_fail * N); derived: a save counts `commit_s` after its cut, so the age grows by that."""
    return (interval_s / 2 + commit_s) / (mtbf_s * shards)


def partial_interval(pls: float, mtbf_s: float, shards: int, commit_s: float = 0.0) -> float:
    """T_save,part = 2 * PLS * N * T_fail: `expected_pls` solved for the interval; negative if no interval does."""
    return 2 * (pls * shards * mtbf_s - commit_s)


def longest_interval(inputs: Inputs) -> float:
    """The interval after which one lost shard no longer fits into the remaining budget (derived).

    A failure just before a commit loses T_save + commit_s of one shard: that times speed must stay within
    remaining * S_total * N. Infinite while speed or total are not known; negative if no interval does.
    """
    if not inputs.samples_per_s or not inputs.total_samples:
        return math.inf
    samples = inputs.remaining * inputs.total_samples * inputs.shards
    return samples / inputs.samples_per_s - inputs.costs.commit_s


def plan(inputs: Inputs) -> Plan:
    """The cheapest plan that keeps the budget, and why. A fixed interval is obeyed."""
    shortest = max(MIN_INTERVAL_S, inputs.costs.commit_s)
    full = _full(inputs, inputs.fixed_interval_s or max(_best_full(inputs), shortest))
    why_full = _why_full(inputs)
    if why_full:
        return _because(full, why_full)
    if inputs.fixed_interval_s:
        partial = _partial(inputs, inputs.fixed_interval_s)
        room = "fit into" if partial.expected_pls <= inputs.remaining else "exceed"
        return _because(partial, f"the interval is fixed; the expected losses {room} what is left of the budget")
    by_budget = partial_interval(inputs.remaining, inputs.mtbf_s, inputs.shards, inputs.costs.commit_s)
    by_age = longest_interval(inputs)
    if min(by_budget, by_age) < shortest:
        return _without_room(inputs, full, shortest)
    bound = "one failure fits" if by_age <= by_budget else "the expected failures fit"
    why = f"no longer interval would do: {bound} into what is left of the budget ({inputs.remaining:.3g})"
    return _cheaper(_partial(inputs, min(by_budget, by_age)), full, why)


def _why_full(inputs: Inputs) -> str:
    """Why nothing but full recovery comes into question; empty if partial recovery does."""
    if inputs.mode == "Full":
        return "full recovery is asked for"
    if inputs.limit <= 0:
        return "the budget allows no loss"
    return ""


def _best_full(inputs: Inputs) -> float:
    return full_interval(inputs.costs.save_stall_s, inputs.mtbf_s)


def _full(inputs: Inputs, interval: float) -> Plan:
    """Full recovery at one interval; nothing it loses stays lost."""
    return Plan("Full", interval, 0.0, full_overhead(interval, inputs.mtbf_s, inputs.costs), inputs, "")


def _partial(inputs: Inputs, interval: float) -> Plan:
    """Partial recovery at one interval."""
    lost = expected_pls(interval, inputs.mtbf_s, inputs.shards, inputs.costs.commit_s)
    return Plan("Partial", interval, lost, partial_overhead(interval, inputs.mtbf_s, inputs.costs), inputs, "")


def _cheaper(partial: Plan, full: Plan, why_interval: str) -> Plan:
    """Of two plans that keep the budget the one that costs less time; partial recovery if the user insists."""
    if partial.inputs.mode == "Partial":
        return _because(partial, f"partial recovery is asked for; {why_interval}")
    if partial.expected_overhead <= full.expected_overhead:
        return _because(partial, f"full recovery would cost {full.expected_overhead:.2%}; {why_interval}")
    return _because(full, f"partial recovery within the budget would cost {partial.expected_overhead:.2%}")


def _without_room(inputs: Inputs, full: Plan, shortest: float) -> Plan:
    """What is left of the budget is too little for any interval: losses will roll back, whatever the mode."""
    why = f"no interval of {shortest:.3g} s or more fits into what is left of the budget ({inputs.remaining:.3g})"
    if inputs.mode == "Auto":
        return _because(full, why)
    return _because(_partial(inputs, full.interval_s), f"{why}; losses that do not fit roll the job back")


def _because(plan: Plan, why: str) -> Plan:
    """The plan with its reason: what is done, what it costs, why."""
    recovery = "Partial recovery" if plan.mode == "Partial" else "Full recovery"
    done = f"{recovery}, a save every {_duration(plan.interval_s)}: {plan.expected_overhead:.2%} of the time expected"
    return replace(plan, reason=f"{done}, as {why}.")


def _duration(seconds: float) -> str:
    """Seconds for people, to three digits."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
