"""The pause that `cprjob bench recovery` finds in a trace, and what it prints of many."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_operator.api.validate import validate
from cpr_operator.cli.document import InvalidDocumentError
from cprjob_bench.commands.killed_job import FOLLOWING_STEPS, UNDER_WAY, longest_pause
from cprjob_bench.commands.recovery import Base, document, percentile, result

STEP_S = 0.01


def steps(first_s: float, number: int) -> list[float]:
    """The ends of steps that follow one another."""
    return [first_s + STEP_S * place for place in range(number)]


def pause(ends_s: list[float], known: int, recovered: int = 1000) -> tuple[float, float]:
    found = longest_pause(ends_s, known, recovered)
    assert found is not None
    return found.began_s, found.seconds


def test_the_pause_lasts_from_the_last_step_before_it_to_the_next_one() -> None:
    ends = [*steps(0.0, 100), *steps(2.5, FOLLOWING_STEPS + 1)]
    assert pause(ends, known=100) == (pytest.approx(0.99), pytest.approx(1.51))


def test_steps_that_end_after_the_kill_do_not_end_the_pause() -> None:
    ends = [*steps(0.0, 100), *steps(2.5, FOLLOWING_STEPS + 1)]
    assert pause(ends, known=50) == (pytest.approx(0.99), pytest.approx(1.51))


def test_a_pause_before_the_kill_does_not_count() -> None:
    ends = [0.0, *steps(9.0, 10), *steps(9.5, FOLLOWING_STEPS + 1)]
    assert pause(ends, known=6) == (pytest.approx(9.09), pytest.approx(0.41))


@pytest.mark.parametrize("recovered", [100 - UNDER_WAY, 100, 101])
def test_a_longer_pause_after_the_recovery_does_not_count(recovered: int) -> None:
    """When the recovery is known, steps may still be under way, and the first one after the pause may be known."""
    ends = [*steps(0.0, 100), *steps(2.5, 10), *steps(9.0, FOLLOWING_STEPS + 1)]
    assert pause(ends, 100, recovered) == (pytest.approx(0.99), pytest.approx(1.51))


def test_there_is_no_pause_before_enough_steps_followed() -> None:
    assert longest_pause([], known=0, recovered=0) is None
    assert longest_pause(steps(0.0, 100), known=100, recovered=100) is None
    assert longest_pause([*steps(0.0, 100), *steps(2.5, FOLLOWING_STEPS)], known=100, recovered=101) is None


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
    job = document("bench", size_mib, spares, Base.here(Path("/store")))
    assert not validate(job)
    (table,) = job["spec"]["model"]["tables"]
    row_bytes = 4 * (job["spec"]["model"]["embeddingDim"] + 1)
    assert table["rows"] * row_bytes / job["spec"]["shards"]["replicas"] == pytest.approx(size_mib * 2**20, rel=1e-3)


def test_pods_are_those_of_another_job_and_trace_their_steps() -> None:
    threads = {"name": "OMP_NUM_THREADS", "value": "1"}
    like = document("like", 1, 0, Base.here(Path("/store")))
    like["spec"]["image"] = "registry.example/trainer:1"
    like["spec"]["snapshots"]["store"] = {"endpoint": "http://minio:9000", "bucket": "b", "credentialsSecret": "keys"}
    like["spec"]["shards"]["template"] = {
        "spec": {"nodeSelector": {"disk": "fast"}, "containers": [{"name": "main", "env": [threads]}]}
    }
    del like["spec"]["trainers"]["template"]
    spec = document("bench", 64, 1, Base.of(like))["spec"]
    assert spec["image"] == like["spec"]["image"]
    assert spec["snapshots"]["store"] == like["spec"]["snapshots"]["store"]
    trace = {"name": "CPR_STEP_TRACE", "value": "/tmp/steps.jsonl"}  # noqa: S108 -- a mount point in the pod
    assert spec["shards"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    (shard,), (trainer,) = (spec[group]["template"]["spec"]["containers"] for group in ("shards", "trainers"))
    assert shard["env"] == [threads, trace]
    assert trainer["env"] == [trace]
    assert like["spec"]["shards"]["template"]["spec"]["containers"][0]["env"] == [threads], "what was read stays"


def test_a_job_that_is_not_valid_is_refused() -> None:
    like = document("like", 1, 0, Base.here(Path("/store")))
    like["spec"]["shards"]["replicas"] = 0
    with pytest.raises(InvalidDocumentError) as refused:
        Base.of(like)
    assert [each.field for each in refused.value.invalid] == ["spec.shards.replicas"]
