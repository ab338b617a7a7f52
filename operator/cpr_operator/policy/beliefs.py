"""What a job believes about its failures: how often they come, and how many shards each one takes.

The rate has a gamma distribution, the conjugate prior of a Poisson process: after k failures in t seconds, alpha
becomes alpha + k and beta becomes beta + t. Time to failure on production clusters is close to that (Maeng et al.,
MLSys 2021, section 3). Pure: each update returns a new belief, and three numbers are all there is to remember.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How many failures the user's own estimate weighs.
PRIOR_FAILURES = 1.0


@dataclass(frozen=True, slots=True)
class Belief:
    """Failures seen (`alpha`) in seconds of training (`beta_s`), what was expected beforehand counted in.

    `lost_per_failure` is the mean number of shards that one failure takes, over the same failures.
    """

    alpha: float
    beta_s: float
    lost_per_failure: float

    @property
    def untried(self) -> bool:
        """Whether no failure was seen yet."""
        return self.alpha <= PRIOR_FAILURES

    @property
    def rate_per_s(self) -> float:
        """The mean of the failure rate, alpha / beta: costs are linear in the rate, so its mean is what counts."""
        return self.alpha / self.beta_s

    @property
    def mtbf_s(self) -> float:
        """T_fail, the inverse of the rate."""
        return self.beta_s / self.alpha


def prior(mtbf_s: float, lost_per_failure: float = 1.0) -> Belief:
    """What is believed before anything was seen. Raises ValueError if the arguments are not positive."""
    if mtbf_s <= 0 or lost_per_failure <= 0:
        raise ValueError(f"mean time between failures {mtbf_s} s and shards lost {lost_per_failure} must be positive")
    return Belief(PRIOR_FAILURES, PRIOR_FAILURES * mtbf_s, lost_per_failure)


def after_failure(belief: Belief, shards: int) -> Belief:
    """After one failure that took the state of `shards` shards at once. Raises ValueError if that is none."""
    if shards < 1:
        raise ValueError("a failure without a lost shard does not affect the budget")
    lost = (belief.lost_per_failure * belief.alpha + shards) / (belief.alpha + 1)
    return Belief(belief.alpha + 1, belief.beta_s, lost)


def after_quiet(belief: Belief, seconds: float) -> Belief:
    """After so many seconds of training; pending, paused and suspended time is not training. Never goes back."""
    return Belief(belief.alpha, belief.beta_s + max(seconds, 0.0), belief.lost_per_failure)
