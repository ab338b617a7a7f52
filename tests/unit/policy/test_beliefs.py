from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.policy import Belief, after_failure, after_quiet, prior

HOUR = 3600.0

Update = Callable[[Belief], Belief]
UPDATES = st.lists(
    st.one_of(
        st.integers(1, 64).map(lambda shards: lambda belief: after_failure(belief, shards)),
        st.floats(0, 1e6).map(lambda seconds: lambda belief: after_quiet(belief, seconds)),
    ),
    max_size=20,
)


def test_the_users_estimate_is_believed_first() -> None:
    belief = prior(28 * HOUR, lost_per_failure=4)
    assert belief.mtbf_s == 28 * HOUR
    assert belief.rate_per_s == 1 / (28 * HOUR)
    assert belief.lost_per_failure == 4


def test_it_weighs_as_much_as_one_failure() -> None:
    belief = after_failure(after_quiet(prior(28 * HOUR), 12 * HOUR), 3)
    assert belief == Belief(alpha=2.0, beta_s=40 * HOUR, lost_per_failure=2.0)
    assert belief.mtbf_s == 20 * HOUR


def test_quiet_time_and_failures_move_the_rate_in_opposite_ways() -> None:
    belief = prior(HOUR)
    assert after_quiet(belief, 60).mtbf_s > belief.mtbf_s > after_failure(belief, 1).mtbf_s
    assert after_quiet(belief, -60) == belief


@given(UPDATES, st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(updates: list[Update], rng: random.Random) -> None:
    shuffled = rng.sample(updates, len(updates))
    one, other = (reduce(lambda belief, update: update(belief), each, prior(HOUR)) for each in (updates, shuffled))
    assert one.alpha == other.alpha
    assert one.beta_s == pytest.approx(other.beta_s)
    assert one.lost_per_failure == pytest.approx(other.lost_per_failure)


@pytest.mark.parametrize("wrong", [lambda: prior(0), lambda: prior(HOUR, 0), lambda: after_failure(prior(HOUR), 0)])
def test_what_makes_no_sense_is_refused(wrong: Callable[[], Belief]) -> None:
    with pytest.raises(ValueError, match=r"positive|without a lost shard"):
        wrong()
