"""The inputs of a plan: the estimate of failures, costs of saves and recoveries, and the bits of values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cpr_operator.policy.equations import uncovered
from cpr_operator.policy.law import Mode, Odds

#: The weight of the user's own estimate, in failures.
PRIOR_FAILURES = 1.0
#: The weight of a new measurement in the running estimate.
NEWEST = 0.3
#: Values to assume until they are measured, in seconds: of a shard with few rows.
GUESSES = {"save_stall_s": 0.1, "commit_s": 1.0, "load_s": 5.0, "reschedule_s": 5.0}
#: The speed at which a shard writes to a store and reads from it, in bytes a second, and the part of a save's duration
#: that steps lose: measurements of docs/snapshots.md, rounded to the careful side.
WRITES_A_S, READS_A_S, STALLED = 256 << 20, 1 << 30, 0.05
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
class FailureEstimate:
    """Failures (`alpha`) in seconds of training (`beta_s`), including those of the prior.

    The rate has a gamma distribution, the conjugate prior of a Poisson process: after k failures in t seconds, alpha
    becomes alpha + k and beta becomes beta + t. Time to failure on production clusters is close to that (Maeng et al.,
    MLSys 2021, section 3). `lost_per_failure` is the mean number of shards lost in one of these failures.
    """

    alpha: float
    beta_s: float
    lost_per_failure: float

    @property
    def unobserved(self) -> bool:
        """True if no failure has been observed yet."""
        return self.alpha <= PRIOR_FAILURES

    @property
    def rate_per_s(self) -> float:
        """The mean failure rate, alpha / beta. The mean suffices because costs are linear in the rate."""
        return self.alpha / self.beta_s

    @property
    def mtbf_s(self) -> float:
        """T_fail, the inverse of the rate."""
        return self.beta_s / self.alpha


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of training. `guessed` names the fields that are not measured yet.

    save_stall_s: O_save, the training time lost per save.
    commit_s: the time from a cut to its committed anchor, during which training continues.
    load_s: O_load, the time to load a save in a recovery.
    reschedule_s: O_res, the time to get a new pod in a recovery.
    """

    save_stall_s: float
    commit_s: float
    load_s: float
    reschedule_s: float
    guessed: tuple[str, ...] = ()

    @property
    def recover_s(self) -> float:
        """O_load + O_res, the cost of any recovery, partial or full."""
        return self.load_s + self.reschedule_s

    @classmethod
    def measured(
        cls,
        save_stall_s: float | None = None,
        commit_s: float | None = None,
        load_s: float | None = None,
        reschedule_s: float | None = None,
        shard_bytes: int = 0,
    ) -> Costs:
        """Return costs from measurements; None stands for the guess, which grows with the rows of a shard."""
        given = {"save_stall_s": save_stall_s, "commit_s": commit_s, "load_s": load_s, "reschedule_s": reschedule_s}
        write_s, read_s = shard_bytes / WRITES_A_S, shard_bytes / READS_A_S
        by_size = {"save_stall_s": STALLED * write_s, "commit_s": write_s, "load_s": read_s}
        guesses = {name: max(least, by_size.get(name, least)) for name, least in GUESSES.items()}
        known = {name: guesses[name] if value is None else value for name, value in given.items()}
        return cls(**known, guessed=tuple(name for name, value in given.items() if value is None))


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a plan.

    limit, spent, reserved: of the budget, as portions of all samples.
    fixed_interval_s: the user's interval, if the user chose one.
    total_samples, samples_per_s: 0 and None until they are known. The training time is then assumed to be one mean
        time between failures.
    saved_samples: the samples of the newest anchor.
    basis: the source of the limit, if the user did not state it as a portion.
    fixed_bits: bits per value in saves; None if the plan chooses them.
    restored: the mean number of restores of a row so far.
    replays: trainers push again the updates of a lost shard since its last save.
    replay_ratio: rho, the seconds that one second of training takes to push again; None until it is measured.
    data_shards: the number of shards with a common parity; 0: there is none.
    """

    mode: Mode
    limit: float
    shards: int
    estimate: FailureEstimate
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
        if self.estimate.unobserved:
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
        return uncovered_at_least(self.shards, self.data_shards, self.estimate.lost_per_failure)

    @property
    def measured(self) -> bool:
        """True if the training time and the cost of a save are known. Until then, percentages mean nothing."""
        return self.total_s is not None and not {"save_stall_s", "commit_s"} & set(self.costs.guessed)

    @property
    def odds(self) -> Odds:
        """The same inputs in seconds of training, for the law."""
        estimate = self.estimate
        total_s = self.total_s or estimate.mtbf_s
        return Odds(
            budget_s=self.remaining * total_s * self.shards,
            left_s=self.left * total_s,
            mtbf_s=estimate.mtbf_s,
            lost=min(estimate.lost_per_failure, self.shards),
            save_s=self.costs.save_stall_s,
            commit_s=self.costs.commit_s,
            replay=self.rho,
        )


def prior(mtbf_s: float, lost_per_failure: float = 1.0) -> FailureEstimate:
    """Return the estimate before any observation. Raises ValueError if the arguments are not positive."""
    if mtbf_s <= 0 or lost_per_failure <= 0:
        raise ValueError(f"mean time between failures {mtbf_s} s and shards lost {lost_per_failure} must be positive")
    return FailureEstimate(PRIOR_FAILURES, PRIOR_FAILURES * mtbf_s, lost_per_failure)


def after_failure(estimate: FailureEstimate, shards: int) -> FailureEstimate:
    """Return the estimate after a failure that lost the state of `shards` shards. Raises ValueError if `shards` < 1."""
    if shards < 1:
        raise ValueError("a failure without a lost shard does not affect the budget")
    lost = (estimate.lost_per_failure * estimate.alpha + shards) / (estimate.alpha + 1)
    return FailureEstimate(estimate.alpha + 1, estimate.beta_s, lost)


def after_quiet(estimate: FailureEstimate, seconds: float) -> FailureEstimate:
    """Return the estimate after `seconds` more of training without a failure. Negative seconds count as 0.

    Pending, paused and suspended time is not training.
    """
    return FailureEstimate(estimate.alpha, estimate.beta_s + max(seconds, 0.0), estimate.lost_per_failure)


def running(old: float | None, measured: float) -> float:
    """Return the exponential moving average with one more measurement. The first one is the average itself."""
    return measured if old is None else old + NEWEST * (measured - old)


def uncovered_at_least(shards: int, data_shards: int, lost: float) -> float:
    """Return the portion of failures that parity of `data_shards` shards is assumed not to cover."""
    return max(uncovered(shards, data_shards, lost), LEAST_UNCOVERED)


def mean_rho(rho: float, portion: float) -> float:
    """Return rho as a mean over failures, with this portion not covered by parity.

    Trainers may have dropped the uncovered samples from their buffers: these are trained again.
    """
    return min(rho, portion * max(rho, 1.0))


def bits_for(restores: float) -> Bits:
    """Return the minimum bits for this number of restores of a row. Each restore adds a quantisation error.

    Check-N-Run, NSDI 2022, section 5.2.
    """
    if restores <= 1:
        return 2
    if restores <= 3:  # noqa: PLR2004 -- the table of the paper
        return 3
    return 4 if restores < 20 else 8  # noqa: PLR2004 -- as above
