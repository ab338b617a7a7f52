"""The benches: their jobs are valid, and their results of kills and runs are right. tests/soak/benches runs them."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cpr_contract.trace import TracedStep
from cpr_operator.api.validate import validate
from cpr_operator.cli.app import app
from cpr_operator.cli.command_errors import TrialError
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.runtime.timing import Trace
from cprjob_bench.bench_documents import Freshness, Holds
from cprjob_bench.commands import freshness_bench, recovery_bench, train_bench
from cprjob_bench.commands.killed_job import FOLLOWING_STEPS, IN_FLIGHT_STEPS, longest_pause
from cprjob_bench.commands.modes import MODES, ModeJob, killed_job
from cprjob_bench.commands.priority_bench import Samples, job_over
from cprjob_bench.commands.strategy_comparison import mean_of
from cprjob_bench.commands.windows import Machine, Window
from cprjob_bench.options import RedundancyMode, TrainPreset
from cprjob_bench.roles.single import train as train_single
from support.local_job import small_job
from support.model import train_alone
from support.row_optimizers import mixed

FOLDER = Path("/store")


# --- jobs


def train_job(preset: TrainPreset) -> dict[str, Any]:
    return train_bench.document(
        preset, rows=1000, trainers=1, shards=5, workers=2, precision="bf16", interval_s=5, samples=FOLDER, store=FOLDER
    )


JOBS = {
    **{f"train-{preset}": train_job(preset) for preset in TrainPreset},
    **{
        f"recovery-{size}": recovery_bench.document("bench", size, 1, recovery_bench.Base.here(FOLDER))
        for size in (1, 2048)
    },
    **{f"redundancy-{mode}": killed_job(64, MODES[mode], FOLDER, FOLDER) for mode in RedundancyMode},
    **{f"mode-{mode}": ModeJob(mode, train_job(TrainPreset.KAGGLE), {})._document for mode in RedundancyMode},
    **{
        f"freshness-{publishes}": freshness_bench.document("x", FOLDER, FOLDER, publishes=publishes)
        for publishes in (True, False)
    },
    "freshness-Kafka": freshness_bench.document("x", "kafka://broker:9092/clicks", FOLDER, publishes=True),
    "priority": job_over(Samples(FOLDER, ("user", "item"), (100, 3))),
}


@pytest.mark.parametrize("name", JOBS)
def test_bench_job_is_valid(name: str) -> None:
    assert validate(JOBS[name]) == ()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "--precision", "fp8"], 2, "fp8"),
        (["train", "--entrypoint", "network"], 1, "spec.model.entrypoint"),
        (["redundancy", "--shards", "4"], 2, "--shards 4"),
        (["snapshot", "--bits", "5"], 2, "--bits 5: must be one of 32, 8, 4, 3, 2"),
        (["snapshot", "--store", "s3://saves"], 2, "with --endpoint"),
        (["snapshot", "--store", "s3://A", "--endpoint", "not a URL"], 1, "spec.snapshots.store"),
        (["priority", "--data", "/nowhere/rows.tsv"], 2, "--data"),
        (["priority", "--data", "{data}", "--interval", "0"], 2, "--interval 0.0: must be above 0"),
        (["priority", "--data", "{data}", "--set", "data.batchSize=0"], 1, "spec.data.batchSize"),
    ],
)
def test_bench_refuses_mistakes_before_it_starts(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "rows.tsv").write_text("label\tuser\titem\n1\ta\tb\n")
    found = CliRunner().invoke(app, ["bench", *(each.format(data=tmp_path / "rows.tsv") for each in arguments)])
    assert found.exit_code == code, found.output
    assert message in " ".join(found.output.split())


# --- freshness


def test_freshness_has_percentiles_of_served_clicks_and_the_ratio_of_paired_windows() -> None:
    def window(samples_per_s: float, publisher_ms: float) -> Window:
        cpu_ms = {"trainer": 5.12, "publisher": publisher_ms}
        return Window(samples_per_s, 1.0, 2.0, {}, cpu_ms, {}, 3, Machine(1.0, 0.0))

    fresh = Freshness(202, tuple(each / 10 for each in range(101)), tuple(each / 20 for each in range(101)))
    windows = {
        freshness_bench.PUBLISHED: [window(90.0, 2.56), window(50.0, 2.56), window(99.0, 2.56)],
        freshness_bench.UNPUBLISHED: [window(100.0, 0.0), window(50.0, 0.0), window(100.0, 0.0)],
    }
    holds = Holds(1000, 20, (0.5, 0.7, 0.6), (0.001, 0.004), (0.0, 0.001))
    found = freshness_bench.result(fresh, windows, holds).document
    assert (found["clicks"], found["not_served"]) == (202, 101)
    assert found["served_s"] == pytest.approx({"p50": 5.0, "p95": 9.5, "max": 10.0})
    assert found["published_s"] == pytest.approx({"p50": 2.5, "p95": 4.75, "max": 5.0})
    assert found["throughput_ratio"] == pytest.approx(0.99)
    assert found["cpu_us_per_sample"]["published"] == pytest.approx({"publisher": 10.0, "trainer": 20.0})
    hold = {"model_rows": 2000, "changed_rows": 40, "update_s": 0.6, "longest_ms": 4.0, "longest_idle_ms": 1.0}
    assert found["hold"] == pytest.approx(hold)
    with pytest.raises(TrialError, match="served no vector"):
        freshness_bench.result(Freshness(202, (), ()), windows, holds)


# --- pauses


def steps(first_s: float, number: int, step_s: float = 0.01) -> list[float]:
    """Return the ends of consecutive steps."""
    return [first_s + step_s * place for place in range(number)]


AFTER = FOLLOWING_STEPS + 1


@pytest.mark.parametrize(
    ("ends_s", "known", "recovered", "expected"),
    [
        pytest.param([*steps(0, 100), *steps(2.5, AFTER)], 100, 1000, (0.99, 1.51), id="last-step-to-next"),
        pytest.param([*steps(0, 100), *steps(2.5, AFTER)], 50, 1000, (0.99, 1.51), id="steps-end-after-the-kill"),
        pytest.param([0.0, *steps(9, 10), *steps(9.5, AFTER)], 6, 1000, (9.09, 0.41), id="pause-before-the-kill"),
        pytest.param(
            [*steps(0, 100), *steps(2.5, 10), *steps(9, AFTER)],
            100,
            100 - IN_FLIGHT_STEPS,
            (0.99, 1.51),
            id="longer-pause-after-the-recovery",
        ),
        pytest.param([*steps(0, 100), *steps(2.5, FOLLOWING_STEPS)], 100, 101, None, id="too-few-steps-followed"),
        pytest.param([], 0, 0, None, id="no-steps"),
    ],
)
def test_pause_of_a_recovery_is_the_longest_after_the_kill(
    ends_s: list[float], known: int, recovered: int, expected: tuple[float, float] | None
) -> None:
    found = longest_pause(ends_s, known, recovered)
    assert (found and (found.began_s, found.seconds)) == (expected and pytest.approx(expected))


# --- systems


def test_single_process_trains_as_the_oracle(tmp_path: Path) -> None:
    job = mixed(small_job(tmp_path, samples=3000))
    with closing(Trace(tmp_path / "steps")) as trace:
        replica, tables = train_single(job, trace)
    expected = train_alone(job)
    torch.testing.assert_close(replica.parameters, expected.dense, rtol=1e-3, atol=1e-5)
    placement = Placement.of(job.model, 1)
    for first, table in zip(placement.offsets.tolist(), expected.tables, strict=True):
        places = torch.from_numpy(placement.places(first + torch.arange(len(table)).numpy()))
        torch.testing.assert_close(tables.rows[places], table, rtol=1e-3, atol=1e-5)
    steps = [TracedStep.of_line(line).step for line in (tmp_path / "steps").read_text().splitlines()]
    assert steps == list(range(1, 31))


def test_priority_mean_has_students_interval() -> None:
    found = mean_of([0.0, 1.0, 2.0, 3.0])
    error = math.sqrt(5 / 3) / 2
    assert (found.mean, found.error) == (1.5, pytest.approx(error))
    assert (found.low, found.high) == (pytest.approx(1.5 - 3.182446 * error), pytest.approx(1.5 + 3.182446 * error))
    assert [mean_of(values).distinguishable for values in ([0.0, 3.0], [1.0, 1.1], [-1.0, -1.1])] == [False, True, True]
