"""The pause that `cprjob bench recovery` finds in a trace, and what it prints of many."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_operator.api.validate import validate
from cprjob_bench.commands.recovery import FOLLOWING_STEPS, document, pause_s, percentile, result

STEP_S = 0.01


def steps(first_s: float, number: int) -> list[float]:
    """The ends of steps that follow one another."""
    return [first_s + STEP_S * place for place in range(number)]


def test_the_pause_lasts_from_the_kill_to_the_end_of_the_step_after_it() -> None:
    ends = [*steps(0.0, 100), *steps(2.5, FOLLOWING_STEPS + 1)]
    assert pause_s(ends, killed_s=0.95) == pytest.approx(1.55)
    assert pause_s(ends, killed_s=0.995) == pytest.approx(1.505)


def test_steps_that_end_after_the_kill_do_not_end_the_pause() -> None:
    ends = [*steps(0.0, 100), *steps(2.5, FOLLOWING_STEPS + 1)]
    assert pause_s(ends, killed_s=0.5) == pytest.approx(2.0)


def test_a_pause_before_the_kill_does_not_count() -> None:
    ends = [0.0, *steps(9.0, 10), *steps(9.5, FOLLOWING_STEPS + 1)]
    assert pause_s(ends, killed_s=9.05) == pytest.approx(0.45)


def test_there_is_no_pause_before_enough_steps_followed() -> None:
    assert pause_s([], killed_s=1.0) is None
    assert pause_s(steps(0.0, 100), killed_s=0.995) is None
    assert pause_s([*steps(0.0, 100), *steps(2.5, FOLLOWING_STEPS)], killed_s=0.995) is None


def test_percentiles_lie_between_runs() -> None:
    assert percentile([0.4], 99) == 0.4
    assert percentile([0.3, 0.1, 0.2], 50) == pytest.approx(0.2)
    assert 0.29 < percentile([0.3, 0.1, 0.2], 99) < 0.3


def test_programs_read_it_by_tier_and_size() -> None:
    found = result({"InPlace": {64: [0.2, 0.2], 512: [0.3]}}).document
    assert found == {
        "InPlace": {
            "64": {"p50_s": 0.2, "p99_s": pytest.approx(0.2), "runs": 2},
            "512": {"p50_s": 0.3, "p99_s": 0.3, "runs": 1},
        }
    }


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("size_mib", [1, 64, 2048])
def test_its_job_is_valid_at_every_size(size_mib: int, spares: int) -> None:
    job = document(size_mib, spares, Path("/store"), {"name": "TRACE", "value": "file"})
    assert not validate(job)
    (table,) = job["spec"]["model"]["tables"]
    row_bytes = 4 * (job["spec"]["model"]["embeddingDim"] + 1)
    assert table["rows"] * row_bytes / job["spec"]["shards"]["replicas"] == pytest.approx(size_mib * 2**20, rel=1e-3)
