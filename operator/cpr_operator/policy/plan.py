"""The plan: the law's choice with its inputs, expected loss, overhead and reason, and when it is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cpr_operator.policy.equations import expected_age, rolled_back
from cpr_operator.policy.inputs import Bits, Inputs, bits_for
from cpr_operator.policy.law import TIE, Choice, Odds, choose, cost_of_saves

#: A relative change of any input by more than this causes a new plan.
STEP = 0.25
#: Changes below this are noise, in the input's own unit.
NOISE = 1e-2
_WHY = {
    "fixed": "The interval is fixed.",
    "tie": f"Longer intervals would save less than {TIE:.1%} of the time and lose more samples.",
    "replay": "With longer intervals, failures would cost more time than saves, because more is pushed again.",
}


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The parts of the time between the first and the last step: productive time, and the time lost by each cause.

    They add up to 1. Waiting until trainers have pushed again is part of a recovery.
    """

    productive: float
    saving: float
    recovering: float
    repeated: float

    @classmethod
    def of(cls, saving: float, recovering: float, repeated: float) -> ExpectedTime:
        """Return the parts for overheads that are portions of the useful training time."""
        whole = 1 + saving + recovering + repeated
        return cls(1 / whole, saving / whole, recovering / whole, repeated / whole)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for the rest of the job.

    stored_bits: bits per value in saves.
    expected_pls: the expected portion of lost samples.
    expected_overhead: the time for saves, rollbacks and recoveries, as a portion of the useful training time.
    expected_time: the same as goodput and its parts.
    """

    mode: Literal["Partial", "Full"]
    interval_s: float
    stored_bits: Bits
    expected_pls: float
    expected_overhead: float
    expected_time: ExpectedTime
    inputs: Inputs
    reason: str

    @property
    def expected_lost_samples(self) -> float:
        """Expected lost samples. Each counts by the portion of shards that lose it."""
        return self.expected_pls * self.inputs.total_samples

    def status_inputs(self) -> dict[str, float]:
        """Return the inputs of the plan, as `status.plan.inputs` has them."""
        inputs, costs = self.inputs, self.inputs.costs
        return {
            "limit": inputs.limit,
            "spent": inputs.spent,
            "reserved": inputs.reserved,
            "shards": float(inputs.shards),
            "mtbfSeconds": inputs.estimate.mtbf_s,
            "lostPerFailure": inputs.estimate.lost_per_failure,
            "totalSamples": float(inputs.total_samples),
            "trainingLeft": inputs.left,
            "samplesPerSecond": inputs.samples_per_s or 0.0,
            "saveStallSeconds": costs.save_stall_s,
            "commitSeconds": costs.commit_s,
            "loadSeconds": costs.load_s,
            "rescheduleSeconds": costs.reschedule_s,
        } | ({} if inputs.rho is None else {"replayRatio": inputs.rho})


def reason(inputs: Inputs, odds: Odds, choice: Choice, recoveries: float, restores: float) -> str:
    """Return the plan, its expected cost once that is measured, its reason, and the inputs that are guesses, as text.

    `recoveries` is the expected cost of O_load + O_res in either mode, as a fraction of the training time.
    `restores` is the expected number of restores of a row in the whole job.
    """
    full, partial = (f"{cost + recoveries:.2%}" for cost in (choice.full_cost, choice.partial_cost))
    every = f"a save every {duration(choice.interval_s)}"
    if inputs.replays:
        done = f"{choice.mode} recovery with replay, {every}"
        cost = f"expected overhead {partial}"
        rho = "" if inputs.replay_ratio is None else f", at {inputs.replay_ratio:.2g} s for each second of training"
        why = f"Trainers push again what a lost shard had learnt{rho}. {_why_interval(inputs, odds, choice)}"
        if inputs.data_shards:
            parity = f"Parity gives back a lost shard, after all but {inputs.uncovered:.0%} of failures."
            why = f"{parity} {_why_interval(inputs, odds, choice)}"
    elif choice.mode == "Full":
        done = f"Full recovery, {every}"
        cost = f"expected overhead {full}"
        why = _why_full(inputs, partial)
    else:
        done = f"Partial recovery, {every}"
        cost = f"expected overhead {partial}, compared with {full} for full recovery"
        why = _why_interval(inputs, odds, choice)
    done = f"{done}: {cost}." if inputs.measured else f"{done}."
    bits = f"Rows are saved with {bits_for(restores)} bits per value for {restores:.2g} expected restores."
    chosen = "" if inputs.fixed_bits else bits
    guessed = f"Still guessed: {', '.join(inputs.guesses)}." if inputs.guesses else ""
    return " ".join(filter(None, (done, why, chosen, inputs.basis, guessed)))


def duration(seconds: float) -> str:
    """Return a duration in s, min or h, to three digits."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def plan(inputs: Inputs) -> Plan:
    """Return the plan that the law chooses."""
    odds = inputs.odds
    choice = choose(inputs.mode, inputs.fixed_interval_s, odds)
    recoveries = inputs.costs.recover_s * inputs.estimate.rate_per_s
    # Full recovery restores all rows at each failure, partial recovery those of the lost shards.
    share = 1.0 if choice.mode == "Full" else odds.lost / inputs.shards
    restores = inputs.restored + share * odds.left_s / odds.mtbf_s
    cost = choice.full_cost if choice.mode == "Full" else choice.partial_cost
    saving = cost_of_saves(odds, choice.interval_s)
    again = max(cost - saving, 0.0)
    return Plan(
        mode=choice.mode,
        interval_s=choice.interval_s,
        stored_bits=bits_for(restores) if inputs.fixed_bits is None else inputs.fixed_bits,
        expected_pls=0.0 if choice.mode == "Full" or inputs.replays else _expected_pls(inputs, odds, choice),
        expected_overhead=recoveries + cost,
        expected_time=ExpectedTime.of(saving, recoveries + again, 0.0)
        if inputs.replays
        else ExpectedTime.of(saving, recoveries, again),
        inputs=inputs,
        reason=reason(inputs, odds, choice, recoveries, restores),
    )


def moved(old: Mapping[str, float], new: Mapping[str, float]) -> bool:
    """Return whether any input differs enough from the inputs `old` of the plan in force, so that it does not flap."""
    if old.keys() != new.keys():
        return True
    return any(abs(new[name] - old[name]) > max(STEP * abs(old[name]), NOISE) for name in new)


def _why_full(inputs: Inputs, partial: str) -> str:
    if inputs.mode == "Full":
        return "The spec requires it."
    if inputs.limit <= 0:
        return "The budget allows no loss."
    if inputs.remaining <= 0:
        return "The budget is used up."
    costs = f"cost {partial} and " if inputs.measured else ""
    return f"Partial recovery would {costs}lose samples, and save too little time to justify that."


def _why_interval(inputs: Inputs, odds: Odds, choice: Choice) -> str:
    left = f"the remaining budget ({inputs.remaining:.3g})"
    shards = f"{odds.lost:.2g} shard{'' if odds.lost == 1 else 's'}"
    match choice.bound:
        case "fixed" | "tie" | "replay":
            return _WHY[choice.bound]
        case "failures":
            failures = f" ({odds.left_s / odds.mtbf_s:.2g}, of {shards} each)" if inputs.total_s is not None else ""
            expected = f"the remaining expected failures{failures} and their spread"
            return f"With longer intervals, {expected} would exceed {left}."
        case "failure":
            return f"With longer intervals, the next failure, of {shards}, would exceed {left}."
        case "commit":
            return f"Saves cannot be more frequent, because each takes {duration(odds.commit_s)}."
        case "full":
            return (
                f"With {left}, saving more often than full recovery would does not pay off; "
                "a loss that exceeds the budget rolls the job back."
            )


def _expected_pls(inputs: Inputs, odds: Odds, choice: Choice) -> float:
    """Return the expected loss that is not rolled back; at most the remaining budget."""
    failures, interval_s = odds.left_s / odds.mtbf_s, min(choice.interval_s, odds.left_s)
    again = rolled_back(failures, interval_s, odds.commit_s, odds.budget_s / odds.lost)
    lost_s = odds.lost * (failures * expected_age(interval_s, odds.commit_s) - again)
    return min(lost_s * inputs.left / (odds.left_s * inputs.shards), inputs.remaining)
