"""What a plan depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cpr_operator.policy.beliefs import Belief
from cpr_operator.policy.costs import Costs
from cpr_operator.policy.equations import uncovered
from cpr_operator.policy.law import Mode, Odds

#: Bits per value of a row in saves.
Bits = Literal[32, 8, 4, 3, 2]
#: rho until it is measured: how long it takes to push one second of training again, in seconds.
REPLAY_GUESS = 0.5
#: A measured rho counts as this at least, because equations divide by it.
_LEAST_RHO = 1e-3
#: The portion of failures that parity is never taken to cover: a neighbour is lost while a shard is rebuilt.
LEAST_UNCOVERED = 0.05
#: The fields of `Costs` in words.
_COSTS = {
    "save_stall_s": "the cost of a save",
    "commit_s": "its duration",
    "load_s": "the duration of a load",
    "reschedule_s": "the start time of a new pod",
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a plan.

    limit, spent, reserved: of the budget, as portions of all samples.
    fixed_interval_s: the user's interval, if the user chose one.
    total_samples, samples_per_s: 0 and None until they are known. The job is then assumed to be as long as one mean
        time between failures.
    saved_samples: the samples of the newest anchor.
    basis: the origin of the limit, if the user did not state it as a portion.
    fixed_bits: bits per value in saves; None if the plan chooses them.
    restored: the mean number of restores of a row so far.
    replays: whether trainers push again what a lost shard had learnt since its last save.
    replay_ratio: rho, the seconds that one second of training takes to push again; None until it is measured.
    data_shards: how many shards have a common parity; 0: there is none.
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
    replays: bool = False
    replay_ratio: float | None = None
    data_shards: int = 0

    @property
    def remaining(self) -> float:
        """The remaining budget, as a portion of all samples."""
        return max(self.limit - self.spent - self.reserved, 0.0)

    @property
    def total_s(self) -> float | None:
        """Training time of the whole job; None until it is known."""
        return self.total_samples / self.samples_per_s if self.total_samples and self.samples_per_s else None

    @property
    def left(self) -> float:
        """The portion of all samples still to train since the newest anchor; more than 0."""
        if not self.total_samples:
            return 1.0
        return max(self.total_samples - self.saved_samples, 1) / self.total_samples

    @property
    def guesses(self) -> tuple[str, ...]:
        """The inputs that are neither stated nor measured, in words."""
        names = [_COSTS[name] for name in self.costs.guessed]
        if self.belief.untried:
            names.append("the number of shards lost per failure")
        if self.replays and self.replay_ratio is None:
            names.append("the speed of replay")
        if self.total_s is None:
            names.append("the training time")
        return tuple(names)

    @property
    def rho(self) -> float | None:
        """Rho for the law, measured or guessed; None without replay. With parity, as a mean over failures."""
        if not self.replays:
            return None
        rho = REPLAY_GUESS if self.replay_ratio is None else max(self.replay_ratio, _LEAST_RHO)
        return mean_rho(rho, self.uncovered)

    @property
    def uncovered(self) -> float:
        """The portion of failures after which more is pushed again than the last second."""
        if not self.data_shards or self.shards < 2:  # noqa: PLR2004 -- a shard alone has no neighbour
            return 1.0
        return uncovered_at_least(self.shards, self.data_shards, self.belief.lost_per_failure)

    @property
    def measured(self) -> bool:
        """Whether the training time and the cost of a save are known. Until then, percentages mean nothing."""
        return self.total_s is not None and not {"save_stall_s", "commit_s"} & set(self.costs.guessed)

    @property
    def odds(self) -> Odds:
        """The same inputs in seconds of training, for the law."""
        belief = self.belief
        total_s = self.total_s or belief.mtbf_s
        return Odds(
            budget_s=self.remaining * total_s * self.shards,
            left_s=self.left * total_s,
            mtbf_s=belief.mtbf_s,
            lost=min(belief.lost_per_failure, self.shards),
            save_s=self.costs.save_stall_s,
            commit_s=self.costs.commit_s,
            replay=self.rho,
        )


def uncovered_at_least(shards: int, data_shards: int, lost: float) -> float:
    """The portion of failures of so many shards that parity of `data_shards` is taken not to give back."""
    return max(uncovered(shards, data_shards, lost), LEAST_UNCOVERED)


def mean_rho(rho: float, portion: float) -> float:
    """Rho as a mean over failures, of which parity does not give back this portion.

    What it does not give back trainers may keep no longer, and it is trained again then.
    """
    return min(rho, portion * max(rho, 1.0))
