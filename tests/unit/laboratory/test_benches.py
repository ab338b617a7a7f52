"""The benches: their jobs are valid, and what they compute of windows, kills and runs. tests/soak/benches runs them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cpr_contract.trace import TracedStep
from cpr_operator.api.validate import validate
from cpr_operator.cli.app import app
from cprjob_bench.commands import measuring, recovery, train
from cprjob_bench.commands.killed_job import FOLLOWING_STEPS, UNDER_WAY, longest_pause
from cprjob_bench.commands.modes import MODES, Contender, killed_job
from cprjob_bench.commands.priority import Samples, job_over, result
from cprjob_bench.commands.verdict import ANCHORS, FULL, Run, Study, mean_of, study
from cprjob_bench.options import RedundancyMode, TrainPreset

FOLDER = Path("/store")


def printed(show: Callable[..., None]) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(console, as_json=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


# --- jobs


def train_job(preset: TrainPreset) -> dict[str, Any]:
    return train.document(
        preset, rows=1000, trainers=1, shards=5, workers=2, precision="bf16", interval_s=5, samples=FOLDER, store=FOLDER
    )


JOBS = {
    **{f"train-{preset}": train_job(preset) for preset in TrainPreset},
    **{f"recovery-{size}": recovery.document("bench", size, 1, recovery.Base.here(FOLDER)) for size in (1, 2048)},
    **{f"redundancy-{mode}": killed_job(64, MODES[mode], FOLDER, FOLDER) for mode in RedundancyMode},
    **{f"contender-{mode}": Contender(mode, train_job(TrainPreset.KAGGLE), {})._document for mode in RedundancyMode},
    "priority": job_over(Samples(FOLDER, ("user", "item"), (100, 3))),
}


@pytest.mark.parametrize("name", JOBS)
def test_bench_job_is_valid(name: str) -> None:
    assert validate(JOBS[name]) == ()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "--precision", "fp8"], 2, "fp8"),
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


# --- pauses and rates


def steps(first_s: float, number: int, step_s: float = 0.01) -> list[float]:
    """The ends of steps that follow one another."""
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
            100 - UNDER_WAY,
            (0.99, 1.51),
            id="longer-pause-after-the-recovery",
        ),
        pytest.param([*steps(0, 100), *steps(2.5, FOLLOWING_STEPS)], 100, 101, None, id="too-few-steps-followed"),
        pytest.param([], 0, 0, None, id="no-steps"),
    ],
)
def test_pause_of_a_recovery(
    ends_s: list[float], known: int, recovered: int, expected: tuple[float, float] | None
) -> None:
    found = longest_pause(ends_s, known, recovered)
    assert (found and (found.began_s, found.seconds)) == (expected and pytest.approx(expected))


def test_window_times_the_steps_that_end_in_it() -> None:
    traced = [TracedStep(n, 0.1 * n, {"compute": 0.02, "save": 0.5 if n == 150 else 0.0}) for n in range(1, 301)]
    traced[-1] = TracedStep(300, 99.0, {"compute": 9.0})
    timing = measuring.time_steps(traced, 10.0, 30.0, batch_size=50)
    assert (timing.samples_per_s, timing.p50_ms, timing.p99_ms) == pytest.approx((500, 100, 100))
    stages = measuring.time_stages({"trainer": traced, "shard": []}, 10.0, 30.0)
    assert stages == {"trainer": {"compute": pytest.approx(20), "save": pytest.approx(500 / 200)}, "shard": {}}


# --- strategies beside one another


def a_study(drops: dict[str, list[float]]) -> Study:
    """A study with these AUC drops seed by seed; those of Anchors are 0.3."""
    drops = {ANCHORS: [0.3] * len(drops[FULL]), **drops}
    runs = [(name, seed, drop) for name, each in drops.items() for seed, drop in enumerate(each)]
    return study([Run(seed, name, 0.8 - drop, drop, 0.1, 0.1, 100_000, 1000, 64) for name, seed, drop in runs])  # type: ignore[arg-type]


def test_priority_mean_has_students_interval() -> None:
    found = mean_of([0.0, 1.0, 2.0, 3.0])
    error = math.sqrt(5 / 3) / 2
    assert (found.mean, found.error) == (1.5, pytest.approx(error))
    assert (found.low, found.high) == (pytest.approx(1.5 - 3.182446 * error), pytest.approx(1.5 + 3.182446 * error))
    assert [mean_of(values).distinguishable for values in ([0.0, 3.0], [1.0, 1.1], [-1.0, -1.1])] == [False, True, True]


def test_priority_study_compares_strategies_seed_by_seed() -> None:
    """Seeds differ by more than strategies do, so only the differences within a seed count."""
    found = a_study({"Full": [0.10, 0.20, 0.30], "MFU": [0.05, 0.15, 0.251], "SSU": [0.2, 0.3, 0.41]})
    assert (found.best, found.second) == ("MFU", "Full")
    assert found.margin.distinguishable
    against_full = {score.strategy: score.against_full for score in found.scores}
    assert against_full[FULL] is None
    assert against_full["MFU"] is not None
    assert against_full["MFU"].mean == pytest.approx(-0.149 / 3)
    said = printed(result("rows.tsv", found).show)
    assert "MFU loses the least AUC, 0.05 less than Full" in said
    assert "(95% interval +0.048 to +0.051): significant." in said
    assert "SSU is worse than Full: +0.1 AUC drop" in said
    unsure = printed(result("rows.tsv", a_study({"Full": [0.10, 0.20, 0.30], "MFU": [0.05, 0.25, 0.25]})).show)
    assert "The difference between MFU and Full is not significant" in unsure
    document = json.loads(json.dumps(result("rows.tsv", found).document))
    assert (document["best"], document["significant"], len(document["runs"])) == ("MFU", True, 12)
