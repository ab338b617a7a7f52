from __future__ import annotations

import gzip
import io
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cpr_contract.requests import Outcome
from cpr_operator.api.validate import validate
from cpr_operator.cli.app import app
from cpr_operator.cli.asking import TrialError
from cpr_operator.cli.console import OptionError
from cprjob_bench.commands.priority import Samples, job_over, prepare, result, runs_of
from cprjob_bench.commands.verdict import (
    ANCHORS,
    FULL,
    STRATEGIES,
    Contender,
    Design,
    Run,
    Study,
    design,
    draw_failures,
    mean_of,
    study,
)
from cprjob_bench.documents import Failure, Saved, Saving

SAVING = Saving(FULL, 0.1, 2, 0.125, ())
HEADER = "label\tuser\titem\n"


def criteo_row(label: int, *categories: str) -> str:
    return "\t".join([str(label), *["1"] * 13, *categories, *["x"] * (26 - len(categories))]) + "\n"


# --- the data


@pytest.mark.parametrize("packed", [False, True])
def test_a_criteo_file_is_used_as_it_is(tmp_path: Path, packed: bool) -> None:  # noqa: FBT001
    text = criteo_row(0, "a", "p") + criteo_row(1, "b", "p") + criteo_row(1, "a", "")
    path = tmp_path / "rows"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    samples = prepare(path, tmp_path)
    assert samples.path == path
    assert samples.columns == tuple(f"c{n}" for n in range(1, 27))
    assert samples.distinct == (2, 2, *[1] * 24)


def test_a_table_with_a_header_is_rewritten_in_the_criteo_layout(tmp_path: Path) -> None:
    path = tmp_path / "ratings.tsv"
    path.write_text(HEADER + "1\tu1\ti1\n0\tu2\ti1\n", "utf-8")
    samples = prepare(path, tmp_path)
    assert (samples.columns, samples.distinct) == (("user", "item"), (2, 1))
    rows = [line.split("\t") for line in samples.path.read_text("utf-8").split("\n")]
    assert rows == [["1", *[""] * 13, "u1", "i1", *[""] * 24], ["0", *[""] * 13, "u2", "i1", *[""] * 24], [""]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "neither a Criteo row of 40 columns nor a header"),
        (b"2\ta\tb\n", "neither a Criteo row"),
        (b"label\n", "neither a Criteo row"),
        (("label" + "\tc" * 27 + "\n").encode(), "up to 26 categorical columns"),
        (HEADER.encode() + b"1\tu1\ti1\n0\tu2\n", "line 3 has 2 columns, not 3"),
        (b"\xff\xfe", "can't decode"),
        (gzip.compress(b"label\tuser\n1\ta\n" * 500, mtime=0)[:-20], "ended before"),
    ],
)
def test_what_is_no_table_of_samples_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=says):
        prepare(path, tmp_path)


def test_the_job_has_a_table_for_each_column(tmp_path: Path) -> None:
    document = job_over(Samples(tmp_path / "rows", ("user", "item"), (100, 3)))
    assert validate(document) == ()
    assert [table["rows"] for table in document["spec"]["model"]["tables"]] == [200, 6]
    assert document["spec"]["data"]["uri"] == str(tmp_path / "rows")


# --- which runs


def test_all_strategies_of_a_seed_meet_the_same_failures() -> None:
    planned = design(SAVING, 3, range(4, 6), 8)
    assert planned.runs == tuple((seed, strategy) for seed in (4, 5) for strategy in (None, *STRATEGIES, ANCHORS))
    assert set(STRATEGIES) == {"Full", "MFU", "SSU", "SCAR", "Growth"}
    trials = dict(zip(planned.runs, planned.experiment.trials, strict=True))
    drawn = dict[int, tuple[Failure, ...]]()
    for (seed, strategy), trial in trials.items():
        assert trial.seed == seed
        if strategy is None:
            assert trial.saving is None
        else:
            seldom = replace(SAVING, interval=0.2)
            expected = seldom if strategy == "Anchors" else replace(SAVING, strategy=strategy)
            assert trial.saving is not None
            assert replace(trial.saving, failures=()) == expected
            assert drawn.setdefault(seed, trial.saving.failures) == trial.saving.failures
    assert drawn[4] != drawn[5]
    assert planned == design(SAVING, 3, range(4, 6), 8)
    assert planned.names[:2] == ("seed 4, no failures", "seed 4, Full")


def test_each_failure_takes_half_of_the_shards_at_any_time() -> None:
    failures = [failure for seed in range(500) for failure in draw_failures(2, 5, random.Random(seed))]
    assert all(len(set(failure.shards)) == 3 and set(failure.shards) <= set(range(5)) for failure in failures)
    assert all(0 < failure.at <= 1 for failure in failures)
    # Uniform: mean 1/2 and deviation 0.29 of 1000 values, five standard errors.
    assert sum(failure.at for failure in failures) / 1000 == pytest.approx(0.5, abs=0.046)


# --- what they show


def a_run(seed: int, strategy: Contender, drop: float, *, pls: float = 0.1, plu: float = 0.1) -> Run:
    return Run(seed, strategy, 0.8 - drop, drop, pls, plu, round(1e6 * plu), 1000, 64)


def a_study(drops: dict[Contender, list[float]]) -> Study:
    """Of these AUC drops seed by seed; those of Anchors are 0.3 unless they are given."""
    drops |= {} if ANCHORS in drops else {ANCHORS: [0.3] * len(drops[FULL])}
    return study([a_run(seed, name, drop) for name, each in drops.items() for seed, drop in enumerate(each)])


def test_a_mean_comes_with_students_interval() -> None:
    found = mean_of([0.0, 1.0, 2.0, 3.0])
    error = math.sqrt(5 / 3) / 2
    assert (found.mean, found.error) == (1.5, pytest.approx(error))
    assert (found.low, found.high) == (pytest.approx(1.5 - 3.182446 * error), pytest.approx(1.5 + 3.182446 * error))
    assert found.distinguishable is False
    assert mean_of([1.0, 1.1]).distinguishable is True
    assert mean_of([-1.0, -1.1]).distinguishable is True


def test_strategies_are_compared_seed_by_seed() -> None:
    # Seeds differ by far more than strategies do: only the differences within a seed tell.
    found = a_study({"Full": [0.10, 0.20, 0.30], "MFU": [0.09, 0.18, 0.29], "SSU": [0.11, 0.22, 0.31]})
    full, mfu, ssu, _ = found.scores
    assert full.against_full is None
    assert mfu.against_full is not None
    assert mfu.against_full.mean == pytest.approx(-0.04 / 3)
    assert mfu.against_full.error == pytest.approx(0.01 / 3)
    assert ssu.against_full is not None
    assert ssu.against_full.mean == pytest.approx(0.04 / 3)
    assert mfu.auc_drop.mean == pytest.approx(0.56 / 3)
    assert (found.best, found.second) == ("MFU", "Full")
    assert found.margin.mean == pytest.approx(0.04 / 3)
    assert found.margin.distinguishable is False


def test_what_saves_only_the_anchors_writes_less_and_wins_nothing() -> None:
    found = a_study({"Full": [0.1, 0.2], "MFU": [0.2, 0.4], ANCHORS: [0.1, 0.1]})
    assert (found.best, found.second) == ("Full", "MFU")
    _, mfu, anchors = found.scores
    assert mfu.against_anchors is not None
    assert mfu.against_anchors.mean == pytest.approx(0.2)
    assert anchors.against_anchors is None
    assert "The difference between MFU and Anchors is not significant: +0.2 AUC drop " in printed(found)


def test_the_order_of_runs_does_not_matter() -> None:
    runs = [a_run(seed, name, 0.01 * seed + (name == "MFU")) for seed in range(4) for name in ("Full", "MFU", ANCHORS)]
    shuffled = runs[::-1]
    assert study(runs).scores[0] == next(score for score in study(shuffled).scores if score.strategy == "Full")
    assert study(runs).margin == study(shuffled).margin


@pytest.mark.parametrize(("by_samples", "better"), [(True, "samples"), (False, "updates")])
def test_the_figure_that_the_drop_follows_predicts_it_better(by_samples: bool, better: str) -> None:  # noqa: FBT001
    rng = random.Random(1)
    runs = []
    for seed in range(20):
        for name in ("Full", "MFU", ANCHORS):
            pls, plu = rng.random(), rng.random()
            runs.append(a_run(seed, name, 0.02 * (pls if by_samples else plu), pls=pls, plu=plu))
    found = study(runs)
    exact, other = (found.samples, found.updates) if by_samples else (found.updates, found.samples)
    assert exact.slope == pytest.approx(0.02)
    assert exact.correlation == pytest.approx(1)
    assert exact.error == pytest.approx(0, abs=1e-12)
    assert other.error > 0.002
    assert found.gain.distinguishable
    assert (found.gain.mean > 0) == (better == "updates")


# --- what is told


def printed(found: Study) -> str:
    console = Console(file=io.StringIO(), width=120)
    result("rows.tsv", found).show(console, as_json=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_winner_is_named_with_its_margin_and_whether_it_is_sure() -> None:
    sure = printed(a_study({"Full": [0.10, 0.20, 0.30], "MFU": [0.05, 0.15, 0.251], "SSU": [0.2, 0.3, 0.41]}))
    assert "MFU loses the least AUC, 0.05 less than Full" in sure
    assert "(95% interval +0.048 to +0.051): significant." in sure
    assert "MFU is better than Full: -0.05 AUC drop" in sure
    assert "SSU is worse than Full: +0.1 AUC drop" in sure
    unsure = printed(a_study({"Full": [0.10, 0.20, 0.30], "MFU": [0.05, 0.25, 0.25]}))
    assert ": not significant." in unsure
    assert "The difference between MFU and Full is not significant" in unsure


def test_the_better_predictor_is_named() -> None:
    rng = random.Random(2)
    runs = [
        a_run(seed, name, 0.02 * (plu := rng.random()), pls=rng.random(), plu=plu)
        for seed in range(8)
        for name in ("Full", "MFU", ANCHORS)
    ]
    assert "fraction of lost row updates predicts the AUC drop significantly better." in printed(study(runs))
    swapped = [replace(run, pls=run.plu, plu=run.pls) for run in runs]
    assert "fraction of lost samples predicts the AUC drop significantly better." in printed(study(swapped))
    equal = [replace(run, pls=run.plu) for run in runs]
    assert "Neither predicts the AUC drop significantly better" in printed(study(equal))
    assert "correlation -, error" in printed(study([replace(run, pls=0.1) for run in runs]))


def test_json_holds_every_run_and_the_answer() -> None:
    answer = result("rows.tsv", a_study({"Full": [0.1, 0.2], "MFU": [0.05, 0.15]})).document
    assert (answer["data"], answer["seeds"], answer["best"], answer["second"]) == ("rows.tsv", 2, "MFU", "Full")
    assert answer["significant"] is True
    assert answer["strategies"]["Full"]["auc_drop_against_full"] is None
    assert answer["strategies"]["MFU"]["auc_drop_against_full"]["mean"] == pytest.approx(-0.05)
    assert answer["strategies"]["MFU"]["lost_row_updates"]["mean"] == 100_000
    assert answer["strategies"]["MFU"]["auc_drop_against_anchors"]["mean"] == pytest.approx(-0.2)
    assert answer["strategies"]["Full"]["auc_drop_against_anchors"] is None
    assert len(answer["runs"]) == 6


# --- the command


def an_outcome(auc: float | None, lost: int, saved: Saved | None) -> tuple[Outcome, Saved | None]:
    return Outcome(auc, 0.5, lost, lost / 1000, 2 * lost), saved


def test_each_run_is_compared_with_its_own_seed() -> None:
    planned = Design(((1, None), (1, "Full"), (2, None), (2, "Full")), design(SAVING, 1, range(1, 2), 2).experiment)
    saved = Saved(rows_written=30, row_updates=400, tracker_bytes=0)
    outcomes = [
        an_outcome(0.8, 0, None),
        an_outcome(0.7, 50, saved),
        an_outcome(0.9, 0, None),
        an_outcome(0.85, 80, saved),
    ]
    one, two = runs_of(planned, outcomes)
    assert one == Run(1, "Full", 0.7, pytest.approx(0.1), 0.05, 0.25, 100, 30, 0)  # type: ignore[arg-type]
    assert (two.auc_drop, two.plu) == (pytest.approx(0.05), 0.4)
    with pytest.raises(TrialError, match="AUC is not defined"):
        runs_of(planned, [an_outcome(None, 0, None), *outcomes[1:]])
    unharmed = [an_outcome(0.8, 0, None), an_outcome(0.8, 0, saved)]
    with pytest.raises(TrialError, match="Nothing was lost"):
        runs_of(planned, [*unharmed, *unharmed])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--interval", "0"], 2, "--interval 0.0: must be above 0"),
        (["--fraction", "1.5"], 2, "--fraction 1.5"),
        (["--seeds", "1"], 2, "seeds"),
        (["--anchors", "1"], 2, "anchors"),
        (["--failures", "0"], 2, "failures"),
        (["--set", "data.samples"], 2, "PATH=VALUE"),
        (["--set", "data.batchSize=0"], 1, "spec.data.batchSize"),
    ],
)
def test_mistakes_are_told_before_anything_starts(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(HEADER + "1\ta\tb\n", "utf-8")
    result = CliRunner().invoke(app, ["bench", "priority", "--data", str(path), *arguments])
    assert result.exit_code == code, result.output
    assert says in result.output


def test_data_that_is_not_there_is_told() -> None:
    result = CliRunner().invoke(app, ["bench", "priority", "--data", "/nowhere/rows.tsv"])
    assert result.exit_code == 2
    assert "--data" in result.output
