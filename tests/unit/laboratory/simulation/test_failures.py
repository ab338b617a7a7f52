from __future__ import annotations

import random
from itertools import islice
from statistics import fmean, stdev

import pytest

from cpr_operator.policy import Costs
from cprjob_bench.simulation.job import DISTRIBUTIONS, STORM_FAILURES, STORM_GAP_S, Job, parse_trace, recorded

HOUR = 3600.0
JOB = Job(56 * HOUR, 8, 4, 28 * HOUR, 0.1, Costs(1.0, 0.0, 1.0, 1.0), 28 * HOUR, 4.0)


def gaps(kind: str, count: int = 20_000) -> list[float]:
    drawn = list(islice(DISTRIBUTIONS[kind](JOB, random.Random(1)), count))
    assert {failure.lost for failure in drawn} == {4}
    return [failure.gap_s for failure in drawn]


@pytest.mark.parametrize(("kind", "variation"), [("exponential", 1.0), ("gamma", 2**0.5), ("storms", 2.6)])
def test_each_distribution_has_the_jobs_mean_and_its_own_spread(kind: str, variation: float) -> None:
    drawn = gaps(kind)
    assert fmean(drawn) == pytest.approx(JOB.mtbf_s, rel=0.05)
    assert stdev(drawn) / fmean(drawn) == pytest.approx(variation, rel=0.05)


def test_storms_come_in_a_row() -> None:
    drawn = gaps("storms", 8)
    assert [gap == STORM_GAP_S for gap in drawn] == ([False] + [True] * (STORM_FAILURES - 1)) * 2


def test_a_trace_is_replayed_as_it_was() -> None:
    times = parse_trace("# hours shards\n 1\n\n2.5 3  # a rack\n2.5\n")
    assert times == ((HOUR, None), (2.5 * HOUR, 3), (2.5 * HOUR, None))
    assert list(recorded(times)(JOB, random.Random(0))) == [(HOUR, 4), (1.5 * HOUR, 3), (0.0, 4)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("one", "line 1: 'one' is not HOURS"),
        ("1\n1 two", "line 2"),
        ("1 2 3", "at most one count"),
        ("1 0", "at most one count"),
        ("2\n1", "hours in order"),
        ("-1", "hours in order"),
        ("nan", "hours in order"),
    ],
)
def test_a_trace_that_makes_no_sense_names_its_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_trace(text)
