"""Estimates of a job's failure rate, and of the number of shards lost per failure.

The rate has a gamma distribution, the conjugate prior of a Poisson process: after k failures in t seconds, alpha
becomes alpha + k and beta becomes beta + t. Time to failure on production clusters is close to that (Maeng et al.,
MLSys 2021, section 3). Pure: each update returns a new belief, which is three numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The weight of the user's own estimate, in failures.
PRIOR_FAILURES = 1.0


@dataclass(frozen=True, slots=True)
class Belief:
    """Failures (`alpha`) in seconds of training (`beta_s`), including those of the prior.

    `lost_per_failure` is the mean number of shards lost in one of these failures.
    """

    alpha: float
    beta_s: float
    lost_per_failure: float

    @property
    def untried(self) -> bool:
        """Whether no failure has been observed yet."""
        return self.alpha <= PRIOR_FAILURES

    @property
    def rate_per_s(self) -> float:
        """The mean failure rate, alpha / beta. The mean suffices because costs are linear in the rate."""
        return self.alpha / self.beta_s

    @property
    def mtbf_s(self) -> float:
        """T_fail, the inverse of the rate."""
        return self.beta_s / self.alpha


def prior(mtbf_s: float, lost_per_failure: float = 1.0) -> Belief:
    """The belief before any observation. Raises ValueError if the arguments are not positive."""
    if mtbf_s <= 0 or lost_per_failure <= 0:
        raise ValueError(f"mean time between failures {mtbf_s} s and shards lost {lost_per_failure} must be positive")
    return Belief(PRIOR_FAILURES, PRIOR_FAILURES * mtbf_s, lost_per_failure)


def after_failure(belief: Belief, shards: int) -> Belief:
    """The belief after one failure that lost the state of `shards` shards. Raises ValueError if `shards` < 1."""
    if shards < 1:
        raise ValueError("a failure without a lost shard does not affect the budget")
    lost = (belief.lost_per_failure * belief.alpha + shards) / (belief.alpha + 1)
    return Belief(belief.alpha + 1, belief.beta_s, lost)


def after_quiet(belief: Belief, seconds: float) -> Belief:
    """The belief after `seconds` more of training without a failure. Negative seconds count as 0.

    Pending, paused and suspended time is not training.
    """
    return Belief(belief.alpha, belief.beta_s + max(seconds, 0.0), belief.lost_per_failure)
