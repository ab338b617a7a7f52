"""What a plan depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cpr_operator.policy.beliefs import Belief
from cpr_operator.policy.costs import Costs
from cpr_operator.policy.law import Mode, Odds

#: Of each value of a row in saves.
Bits = Literal[32, 8, 4, 3, 2]
#: What the fields of `Costs` are called.
_COSTS = {
    "save_stall_s": "the cost of a save",
    "commit_s": "its duration",
    "load_s": "the duration of a load",
    "reschedule_s": "the start time of a new pod",
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a plan depends on. `limit`, `spent` and `reserved` are portions of all samples.

    `saved_samples` are those of the newest anchor. `fixed_interval_s` is set by a user who chose the interval, `basis`
    says where the limit comes from if the user did not state it as a portion. `total_samples` is 0 and `samples_per_s`
    None until they are known: then the job is taken to be as long as one mean time between failures. `fixed_bits` are
    the bits of a value in saves, None if the plan chooses them; a row was `restored` so many times on average.
    """

    mode: Mode
    limit: float
    shards: int
    belief: Belief
    spent: float = 0.0
    reserved: float = 0.0
    fixed_interval_s: float | None = None
    total_samples: int = 0
    saved_samples: int = 0
    samples_per_s: float | None = None
    costs: Costs = field(default_factory=Costs.measured)
    basis: str = ""
    fixed_bits: Bits | None = 32
    restored: float = 0.0

    @property
    def remaining(self) -> float:
        """What is left of the budget, as a portion of all samples."""
        return max(self.limit - self.spent - self.reserved, 0.0)

    @property
    def total_s(self) -> float | None:
        """Training time of the whole job; None until it is known."""
        return self.total_samples / self.samples_per_s if self.total_samples and self.samples_per_s else None

    @property
    def left(self) -> float:
        """The portion of all samples that is left to train since the newest anchor; more than 0."""
        if not self.total_samples:
            return 1.0
        return max(self.total_samples - self.saved_samples, 1) / self.total_samples

    @property
    def guesses(self) -> tuple[str, ...]:
        """What is neither stated nor measured, in words."""
        names = [_COSTS[name] for name in self.costs.guessed]
        if self.belief.untried:
            names.append("the number of shards lost per failure")
        if self.total_s is None:
            names.append("the training time")
        return tuple(names)

    @property
    def measured(self) -> bool:
        """Whether the job has shown how long it trains and what a save costs; until then percentages mean nothing."""
        return self.total_s is not None and not {"save_stall_s", "commit_s"} & set(self.costs.guessed)

    @property
    def odds(self) -> Odds:
        """The same in seconds of training, as the law takes it."""
        belief = self.belief
        total_s = self.total_s or belief.mtbf_s
        return Odds(
            budget_s=self.remaining * total_s * self.shards,
            left_s=self.left * total_s,
            mtbf_s=belief.mtbf_s,
            lost=min(belief.lost_per_failure, self.shards),
            save_s=self.costs.save_stall_s,
            commit_s=self.costs.commit_s,
        )
