"""The account of a job's time: each cause, rollbacks, operators that were away, and clocks that differ."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.api.goodput_status import Activity, Goodput
from cpr_operator.goodput import Observation, account, parts_ms, projected

BEGIN = 1_700_000_000.25
#: Samples per second.
SPEED = 100.0

OBSERVATIONS = st.builds(
    Observation,
    activity=st.sampled_from([*get_args(Activity), None]),
    reported=st.none() | st.integers(0, 9000),
    rolled_back=st.none() | st.integers(0, 9000),
    speed=st.none() | st.floats(0.1, 1000),
    saving_s=st.floats(0, 20),
    in_place_s=st.floats(0, 20),
)


def seen(
    activity: Activity | None,
    reported: int | None = None,
    *,
    back: int | None = None,
    saving_s: float = 0.0,
    in_place_s: float = 0.0,
) -> Observation:
    return Observation(activity, reported, back, SPEED, saving_s, in_place_s)


def fold(*passes: tuple[float, Observation]) -> Goodput:
    """The account after passes at these seconds."""
    goodput = None
    for at, observation in passes:
        goodput = account(goodput, BEGIN + at, observation)
    assert goodput is not None
    return goodput


def seconds(goodput: Goodput) -> dict[str, float]:
    """The parts that are not 0."""
    return {name: value / 1000 for name, value in parts_ms(goodput).items() if value}


#: Passes, as seconds and what they show, and the seconds of each part.
CASES: dict[str, tuple[tuple[tuple[float, Observation], ...], dict[str, float]]] = {
    "a job that is queued": (((0, seen("Queued")), (7, seen("Starting"))), {"queued": 7}),
    "a start up to the first step": (
        ((0, seen("Starting")), (4, seen("Training", 100)), (10, seen("Training", 700))),
        {"starting": 3, "productive": 7},
    ),
    "training at a third of the usual speed": (
        ((0, seen("Training", 0)), (15, seen("Training", 500))),
        {"productive": 15},
    ),
    "saves": (
        ((0, seen("Training", 0)), (10, seen("Training", 950, saving_s=0.5))),
        {"productive": 9.5, "saving": 0.5},
    ),
    "a stall that is longer than its interval": (
        ((0, seen("Training", 0)), (1, seen("Training", 0, saving_s=3, in_place_s=3))),
        {"saving": 1},
    ),
    "a process that restarts in its pod": (
        ((0, seen("Training", 0)), (10, seen("Training", 980, in_place_s=0.2))),
        {"productive": 9.8, "recovering": 0.2},
    ),
    "a lost shard while the leader reports": (
        (
            (0, seen("Training", 0)),
            (5, seen("Recovering", 480)),
            (8, seen("Training", 580)),
            (10, seen("Training", 780)),
        ),
        {"productive": 8, "recovering": 2},
    ),
    "a lost leader, whose last samples the next one reports": (
        ((0, seen("Training", 0)), (5, seen("Recovering")), (8, seen("Training", 500)), (10, seen("Training", 700))),
        {"productive": 7, "recovering": 3},
    ),
    "a lost leader of a job that trained less than usual before": (
        ((0, seen("Training", 0)), (5, seen("Recovering")), (8, seen("Training", 450)), (10, seen("Training", 650))),
        {"productive": 7, "recovering": 3},
    ),
    "a loss that does not stop the others": (
        ((0, seen("Training", 0)), (5, seen("Recovering", 500)), (9, seen("Training", 900))),
        {"productive": 9},
    ),
    "a rollback, and training up to where the job was": (
        (
            (0, seen("Training", 0)),
            (5, seen("Recovering", 500, back=200)),
            (8, seen("Training", 200)),
            (10, seen("Training", 400)),
            (12, seen("Training", 600)),
        ),
        {"productive": 6, "recovering": 3, "repeated": 3},
    ),
    "a rollback after the loss of the leader": (
        (
            (0, seen("Training", 0)),
            (5, seen("Recovering", back=200)),
            (8, seen("Training", 200)),
            (12, seen("Training", 600)),
        ),
        {"productive": 6, "recovering": 3, "repeated": 3},
    ),
    "a suspension": (
        ((0, seen("Training", 0)), (5, seen("Suspended")), (65, seen("Suspended")), (3665, seen("Starting"))),
        {"productive": 5, "suspended": 3660},
    ),
    "data that arrives slowly": (
        ((0, seen("WaitingForData", 0)), (15, seen("WaitingForData", 300)), (20, seen("Training", 400))),
        {"productive": 4, "waiting_for_data": 16},
    ),
    "the last samples, and the final anchor": (
        ((0, seen("Training", 0)), (10, seen("Finishing", 600)), (12, seen(None, 600))),
        {"productive": 6, "finishing": 6},
    ),
    "an end between two passes": (((0, seen("Training", 0)), (10, seen(None, 900))), {"productive": 9, "finishing": 1}),
    "a job that fails": (((0, seen("Training", 0)), (10, seen(None))), {"productive": 10}),
    "an operator that was away while the job trained": (
        ((0, seen("Training", 0)), (3600, seen("Training", 320_000))),
        {"productive": 3600},
    ),
    "an operator that was away while a member was lost": (
        (
            (0, seen("Training", 0)),
            (3600, seen("Training")),
            (3601, seen("Recovering")),
            (3610, seen("Training", 60_000)),
        ),
        {"productive": 600, "recovering": 3010},
    ),
    "an operator that was away while the job stood still": (
        ((0, seen("Training", 0)), (3600, seen("Training", 60_000))),
        {"productive": 600, "recovering": 3000},
    ),
    "an operator that was away while a job was queued": (
        ((0, seen("Queued")), (3600, seen("Starting"))),
        {"queued": 3600},
    ),
    "a new operator with a clock that is behind": (
        (
            (0, seen("Training", 0)),
            (30, seen("Training", 3000)),
            (10, seen("Recovering", 3100)),
            (35, seen("Training", 3100)),
        ),
        {"productive": 30, "recovering": 5},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_time_is_attributed_to(name: str) -> None:
    passes, expected = CASES[name]
    assert seconds(fold(*passes)) == expected


@given(st.lists(st.tuples(st.floats(-40, 200), OBSERVATIONS), min_size=1, max_size=12))
def test_parts_add_up_to_the_wall_time_and_never_shrink(steps: list[tuple[float, Observation]]) -> None:
    """Over any observations, and clocks that run back."""
    times = [BEGIN + at for at in accumulate(step for step, _ in steps)]
    accounts: list[Goodput] = []
    for now, (_, observation) in zip(times, steps, strict=True):
        goodput = account(accounts[-1] if accounts else None, now, observation)
        accounts.append(Goodput.model_validate(goodput.to_dict()))  # as the next pass reads it
    for each in accounts:
        assert sum(parts_ms(each).values()) == round(1000 * each.wall_seconds)
        assert min(parts_ms(each).values()) >= 0
        assert projected(each, each.updated + 7).wall_seconds >= each.wall_seconds
    for before, after in pairwise(accounts):
        assert all(value >= parts_ms(before)[name] for name, value in parts_ms(after).items())
        assert round(1000 * (after.updated - before.updated)) == round(
            1000 * (after.wall_seconds - before.wall_seconds)
        )


def test_projected_account_adds_the_time_since_then_unless_the_job_trains() -> None:
    queued = fold((0, seen("Queued")), (2, seen("Queued")))
    training = fold((0, seen("Queued")), (2, seen("Training", 0)))
    later = projected(queued, BEGIN + 100)
    assert (seconds(later), later.wall_seconds, later.ratio) == ({"queued": 100}, 100, 0)
    assert projected(training, BEGIN + 100) is training
