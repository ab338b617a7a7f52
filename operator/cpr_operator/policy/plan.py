"""The plan: the law's choice with its inputs, its expected loss and overhead, and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpr_operator.policy import words
from cpr_operator.policy.bits import bits_for, expected_restores
from cpr_operator.policy.equations import expected_age, rolled_back
from cpr_operator.policy.inputs import Bits, Inputs
from cpr_operator.policy.law import Choice, Odds, choose


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for the rest of the job.

    stored_bits: bits per value in saves.
    expected_pls: the expected portion of lost samples.
    expected_overhead: the time for saves, rollbacks and recoveries, as a portion of the useful training time.
    """

    mode: Literal["Partial", "Full"]
    interval_s: float
    stored_bits: Bits
    expected_pls: float
    expected_overhead: float
    inputs: Inputs
    reason: str

    @property
    def expected_lost_samples(self) -> float:
        """Expected lost samples. Each counts by the portion of shards that lose it."""
        return self.expected_pls * self.inputs.total_samples

    def figures(self) -> dict[str, float]:
        """The figures that the plan was computed from, as `status.plan.inputs` shows them."""
        inputs, costs = self.inputs, self.inputs.costs
        return {
            "limit": inputs.limit,
            "spent": inputs.spent,
            "reserved": inputs.reserved,
            "shards": float(inputs.shards),
            "mtbfSeconds": inputs.belief.mtbf_s,
            "lostPerFailure": inputs.belief.lost_per_failure,
            "totalSamples": float(inputs.total_samples),
            "trainingLeft": inputs.left,
            "samplesPerSecond": inputs.samples_per_s or 0.0,
            "saveStallSeconds": costs.save_stall_s,
            "commitSeconds": costs.commit_s,
            "loadSeconds": costs.load_s,
            "rescheduleSeconds": costs.reschedule_s,
        } | ({} if inputs.rho is None else {"replayRatio": inputs.rho})


def plan(inputs: Inputs) -> Plan:
    """The plan that the law chooses."""
    odds = inputs.odds
    choice = choose(inputs.mode, inputs.fixed_interval_s, odds)
    recoveries = inputs.costs.recover_s * inputs.belief.rate_per_s
    restores = expected_restores(inputs, choice)
    return Plan(
        mode=choice.mode,
        interval_s=choice.interval_s,
        stored_bits=bits_for(restores) if inputs.fixed_bits is None else inputs.fixed_bits,
        expected_pls=0.0 if choice.mode == "Full" or inputs.replays else _expected_pls(inputs, odds, choice),
        expected_overhead=recoveries + (choice.full_cost if choice.mode == "Full" else choice.partial_cost),
        inputs=inputs,
        reason=words.reason(inputs, odds, choice, recoveries, restores),
    )


def _expected_pls(inputs: Inputs, odds: Odds, choice: Choice) -> float:
    """The expected loss that is not rolled back; at most the remaining budget."""
    failures, interval_s = odds.left_s / odds.mtbf_s, min(choice.interval_s, odds.left_s)
    again = rolled_back(failures, interval_s, odds.commit_s, odds.budget_s / odds.lost)
    lost_s = odds.lost * (failures * expected_age(interval_s, odds.commit_s) - again)
    return min(lost_s * inputs.left / (odds.left_s * inputs.shards), inputs.remaining)
