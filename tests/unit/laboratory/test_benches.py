"""The benches: their jobs are valid, and what they compute of windows, kills and runs. tests/soak/benches runs them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cpr_contract.requests import Outcome
from cpr_contract.trace import TracedStep
from cpr_operator.api.validate import validate
from cpr_operator.cli.app import app
from cpr_operator.cli.asking import TrialError
from cpr_operator.cli.console import OptionError
from cprjob_bench.commands import kills, measuring, recovery, snapshot, train
from cprjob_bench.commands.killed_job import FOLLOWING_STEPS, UNDER_WAY, longest_pause
from cprjob_bench.commands.modes import MODES, Contender, killed_job
from cprjob_bench.commands.priority import Samples, job_over, prepare, result, runs_of
from cprjob_bench.commands.verdict import ANCHORS, FULL, Design, Run, Study, design, mean_of, study
from cprjob_bench.documents import Contest, Cut, Figures, Latency, Round, Saved, Saving, Window
from cprjob_bench.options import RedundancyMode, TrainPreset

MIB = 2**20
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


def test_rate_after_a_kill_is_compared_with_that_before_it() -> None:
    """10 steps a second long before, 100 until 10 s, none until 12 s, 50 until 16 s, and 100 again."""
    before = 10 - kills.BEFORE_S
    ends = [0.1 * n for n in range(int(10 * before))]
    ends += [*steps(before, int(100 * kills.BEFORE_S)), *steps(12, 200, 0.02), *steps(16, 400)]
    assert kills.rate_ratio(ends, 10.0, 12.0, 16.0) == pytest.approx(0.5, rel=0.02)
    assert kills.rate_ratio(ends, 10.0, 12.0, 20.0) == pytest.approx(0.75, rel=0.02)
    assert kills.rate_ratio(ends, 10.0, 12.0, 12.05) is None, "a few steps are no rate"


def test_window_times_the_steps_that_end_in_it() -> None:
    traced = [TracedStep(n, 0.1 * n, {"compute": 0.02, "save": 0.5 if n == 150 else 0.0}) for n in range(1, 301)]
    traced[-1] = TracedStep(300, 99.0, {"compute": 9.0})
    timing = measuring.time_steps(traced, 10.0, 30.0, batch_size=50)
    assert (timing.samples_per_s, timing.p50_ms, timing.p99_ms) == pytest.approx((500, 100, 100))
    stages = measuring.time_stages({"trainer": traced, "shard": []}, 10.0, 30.0)
    assert stages == {"trainer": {"compute": pytest.approx(20), "save": pytest.approx(500 / 200)}, "shard": {}}


# --- results


def window(rate: float, *, sent: float = 500.0, parity: int = 0, log: int = 0, rss: int = 0) -> measuring.Window:
    cpu_ms = {"trainer": 40.0, "shard": 1e5 / rate, "cprjob": 99.0}
    machine = measuring.Machine(100.0, 0.0)
    kept = {"parity": parity, "log": log}
    return measuring.Window(rate, 4.0, 9.0, {}, cpu_ms, {"shard": rss}, None, machine, sent, kept)


def test_train_result_compares_windows_repeat_by_repeat() -> None:
    """The second repeat ran on a machine of half the speed, and the ratio shows nothing of it."""
    single, ours = [window(100.0), window(50.0), window(98.0)], [window(90.0), window(45.0), window(49.0)]
    found = train.result({"precision": "fp32"}, {"single": single, "cprjob": ours}).document
    assert found["ratio_to_single"] == {"cprjob": pytest.approx(0.9)}
    assert found["contenders"]["cprjob"]["samples_per_s"] == 49.0


def test_recovery_result_has_percentiles_by_tier_and_size() -> None:
    found = recovery.result({"InPlace": {64: [0.3, 0.1, 0.2], 512: [0.3]}}).document["InPlace"]
    assert found["64"] == {"p50_s": pytest.approx(0.2), "p99_s": pytest.approx(0.298), "runs": 3}
    assert found["512"] == {"p50_s": 0.3, "p99_s": 0.3, "runs": 1}


def test_redundancy_result_compares_windows_with_those_of_none() -> None:
    none, rates = [window(1000.0), window(500.0)], ((900, 700), (450, 800))
    mine = [window(rate, sent=sent, parity=25 * MIB, log=5 * MIB, rss=10 * MIB) for rate, sent in rates]
    found = kills.figures_of({RedundancyMode.NONE: none, RedundancyMode.PARITY_4: mine}, {}, 100 * MIB)["parity-4"]
    assert (found.throughput_of_none, found.network_bytes_per_sample) == (pytest.approx(0.9), 750.0)
    assert (found.parity_memory, found.log_memory, found.extra_memory) == (0.25, 0.05, pytest.approx(0.3))
    assert found.resident_of_none == pytest.approx(0.1)
    first, second = ((40 + 1e5 / mine) / (40 + 1e5 / its) for mine, its in ((900, 1000), (450, 500)))
    assert found.processor_of_none == pytest.approx((first + second) / 2), "of members alone"


def a_round(idle_ms: float, saving_ms: float, pause_s: float) -> Round:
    idle, saving = (
        Window(100, lookup=Latency(ms, 2 * ms), push=Latency(3 * ms, 4 * ms)) for ms in (idle_ms, saving_ms)
    )
    return Round(idle, saving, pause_s)


def test_snapshot_result_has_medians_and_ratios_of_pairs() -> None:
    found = Figures(
        table_bytes=512 * MIB,
        saved_bytes=512 * MIB + 100,
        save=(Contest(1.0, 0.5, 0.5, 0.1), Contest(0.5, 0.25, 0.1, 0.2), Contest(0.25, 1.0, 0.25, 0.3)),
        restore=(Contest(0.25, 0.1, 0.5, 0.2),),
        rounds=(a_round(1.0, 1.5, 0.001), a_round(2.0, 4.0, 0.002), a_round(5.0, 5.0, 0.009)),
        extra_memory_bytes=51 * MIB,
        trackers=(0,),
        cuts=(Cut("MFU", 32, 125, MIB, 0.2),),
    )
    summary = snapshot.summarise(found)
    assert (summary.save.gib_s, summary.save.raw_gib_s) == (1.0, 2.0)
    assert summary.save.of_raw == 0.5, "the median of 0.5, 0.2 and 1"
    assert (summary.lookup_p50_ms.idle, summary.lookup_p50_ms.saving, summary.lookup_p50_ms.ratio) == (2.0, 4.0, 1.5)
    assert summary.pause_ms == 2.0
    shown = snapshot.result({"rows": 7}, ("MFU",), found)
    assert (shown.document["rows"], shown.document["bytes"]) == (7, {"MFU": {"32": MIB}})
    assert "Memory beyond the tables: 51.0 MiB, 10.0% of them." in printed(shown.show)


# --- strategies beside one another


SAVING = Saving(FULL, 0.1, 2, 0.125, ())


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


def test_priority_run_is_compared_with_its_own_seed() -> None:
    planned = Design(((1, None), (1, FULL), (2, None), (2, FULL)), design(SAVING, 1, range(1, 2), 2).experiment)
    saved = Saved(rows_written=30, row_updates=400, tracker_bytes=0)
    trials = ((0.8, 0, None), (0.7, 50, saved), (0.9, 0, None), (0.85, 80, saved))
    outcomes = [(Outcome(auc, 0.5, lost, lost / 1000, 2 * lost), saves) for auc, lost, saves in trials]
    one, two = runs_of(planned, outcomes)
    assert (one.auc_drop, one.pls, one.plu) == (pytest.approx(0.1), 0.05, 0.25)
    assert (two.auc_drop, two.plu) == (pytest.approx(0.05), 0.4)
    with pytest.raises(TrialError, match="AUC is not defined"):
        runs_of(planned, [(replace(outcomes[0][0], auc=None), None), *outcomes[1:]])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            "0" + "\t1" * 13 + "\ta" * 26 + "\n" + "1" + "\t1" * 13 + "\tb" * 26 + "\n", (2,) * 26, id="criteo"
        ),
        pytest.param("label\tuser\titem\n1\tu1\ti1\n0\tu2\ti1\n", (2, 1), id="header"),
        pytest.param("2\ta\tb\n", "neither a Criteo row of 40 columns nor a header", id="no-label"),
        pytest.param("label" + "\tc" * 27 + "\n", "up to 26 categorical columns", id="too-wide"),
        pytest.param("label\tuser\titem\n1\tu1\ti1\n0\tu2\n", "line 3 has 2 columns, not 3", id="short-line"),
    ],
)
def test_priority_takes_criteo_rows_and_tables_with_a_header(
    tmp_path: Path, content: str, expected: tuple[int, ...] | str
) -> None:
    (tmp_path / "rows").write_text(content, "utf-8")
    if isinstance(expected, str):
        with pytest.raises(OptionError, match=expected):
            prepare(tmp_path / "rows", tmp_path)
    else:
        samples = prepare(tmp_path / "rows", tmp_path)
        assert samples.distinct == expected
        assert {line.count("\t") for line in samples.path.read_text("utf-8").splitlines()} == {39}
