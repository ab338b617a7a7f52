"""How many workers a trainer has follows from the times that were measured."""

from __future__ import annotations

import pytest

from cpr_trainer.trainer.workers import candidates, choose


@pytest.mark.parametrize(
    ("processors", "samples", "counts"),
    [
        (1, 2048, (1,)),
        (2, 2048, (1, 2)),
        (6, 2048, (1, 2, 4, 6)),
        (8, 2048, (1, 2, 4, 8)),
        (8, 7, (1, 2, 3)),
        (8, 3, (1,)),
        (8, 0, (1,)),
        (200, 2048, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_workers_are_doubled_up_to_the_processors_and_to_what_a_slice_divides_into(
    processors: int, samples: int, counts: tuple[int, ...]
) -> None:
    assert candidates(processors, samples) == counts


@pytest.mark.parametrize(
    ("times_s", "count"),
    [
        ({1: [0.010], 2: [0.008], 4: [0.006]}, 4),
        ({1: [0.010], 2: [0.006], 4: [0.008]}, 2),
        ({1: [0.010], 2: [0.010]}, 1),
        ({1: [0.0102], 2: [0.010]}, 1),
        ({1: [0.0104], 2: [0.010]}, 2),
        ({1: [0.020], 2: [0.0102], 4: [0.010]}, 2),
        ({1: [0.010, 0.010, 0.500], 2: [0.011, 0.011, 0.001]}, 1),
        ({1: [0.010, 0.0102, 0.020], 2: [0.009, 0.0101, 0.018]}, 2),
    ],
)
def test_the_fewest_workers_that_are_as_fast_as_any_are_chosen(times_s: dict[int, list[float]], count: int) -> None:
    """A gain below 3 % is none, one odd time counts for nothing, nor does a slow round that all numbers share."""
    assert choose(times_s).count == count


def test_the_reason_has_the_times() -> None:
    found = choose({2: [0.0215, 0.0214, 0.0216], 1: [0.0251, 0.0252, 0.0253]})
    assert found.reason == "measured for the first batch: 25.20 ms with 1, 21.50 ms with 2"
