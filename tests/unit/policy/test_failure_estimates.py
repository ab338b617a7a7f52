from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.policy import Costs, FailureEstimate, after_failure, after_quiet, prior, running

HOUR = 3600.0

Update = Callable[[FailureEstimate], FailureEstimate]
UPDATES = st.lists(
    st.one_of(
        st.integers(1, 64).map(lambda shards: lambda estimate: after_failure(estimate, shards)),
        st.floats(0, 1e6).map(lambda seconds: lambda estimate: after_quiet(estimate, seconds)),
    ),
    max_size=20,
)


def test_prior_is_the_users_estimate_and_weighs_one_failure() -> None:
    estimate = prior(28 * HOUR, lost_per_failure=4)
    assert (estimate.mtbf_s, estimate.rate_per_s, estimate.lost_per_failure) == (28 * HOUR, 1 / (28 * HOUR), 4)
    estimate = after_failure(after_quiet(prior(28 * HOUR), 12 * HOUR), 3)
    assert estimate == FailureEstimate(alpha=2.0, beta_s=40 * HOUR, lost_per_failure=2.0)
    assert estimate.mtbf_s == 20 * HOUR
    assert after_quiet(estimate, 60).mtbf_s > estimate.mtbf_s > after_failure(estimate, 1).mtbf_s
    assert after_quiet(estimate, -60) == estimate


@given(UPDATES, st.randoms(use_true_random=False))
def test_estimate_does_not_depend_on_the_order_of_events(updates: list[Update], rng: random.Random) -> None:
    shuffled = rng.sample(updates, len(updates))
    one, other = (reduce(lambda estimate, update: update(estimate), each, prior(HOUR)) for each in (updates, shuffled))
    assert one.alpha == other.alpha
    assert one.beta_s == pytest.approx(other.beta_s)
    assert one.lost_per_failure == pytest.approx(other.lost_per_failure)


@pytest.mark.parametrize("wrong", [lambda: prior(0), lambda: prior(HOUR, 0), lambda: after_failure(prior(HOUR), 0)])
def test_invalid_estimates_are_refused(wrong: Callable[[], FailureEstimate]) -> None:
    with pytest.raises(ValueError, match=r"positive|without a lost shard"):
        wrong()


def test_unmeasured_costs_are_guessed_and_named() -> None:
    costs = Costs.measured(save_stall_s=2.0, load_s=3.0)
    assert costs == Costs(2.0, 1.0, 3.0, 5.0, guessed=("commit_s", "reschedule_s"))
    assert costs.recover_s == 8.0
    assert Costs.measured(0.0, 0.0, 0.0, 0.0).guessed == ()


def test_running_mean_begins_with_the_first_measurement() -> None:
    estimate = running(None, 10.0)
    assert estimate == 10.0
    assert running(estimate, 20.0) == pytest.approx(13.0)
    for _ in range(20):
        estimate = running(estimate, 20.0)
    assert estimate == pytest.approx(20.0, abs=0.02)
