from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cpr_operator.cli.app import app
from cpr_operator.policy import Costs
from cprjob_bench.commands import simulate as command
from cprjob_bench.commands.simulate import SimulateOptions, job_of
from cprjob_bench.simulation.job import PAPER, PRODUCTION

HOUR = 3600.0
QUICKSTART = str(Path(__file__).parents[4] / "examples" / "quickstart.yaml")
FAST = ["--runs", "20"]
runner = CliRunner()


def simulate(*arguments: str) -> dict[str, Any]:
    result = runner.invoke(app, ["simulate", "--json", *FAST, *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("preset", ["paper", "production"])
def test_a_preset_as_json(preset: str) -> None:
    found = simulate("--preset", preset)
    assert (found["preset"], found["runs"]) == (preset, 20)
    assert set(found) == {"preset", "runs", "strategies"}
    assert len(found["strategies"]) == 15


def test_the_table_names_strategies_and_the_rate() -> None:
    result = runner.invoke(app, ["simulate", *FAST])
    assert result.exit_code == 0, result.output
    for says in ("20 jobs of 56 h on 8 shards", "cpr_closed_loop_async", "rollbacks"):
        assert says in result.stdout
    assert "300 jobs in" in result.stderr
    assert "jobs per second" in result.stderr


def test_scale_has_a_part_for_each_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "SCALES", (8, 16))
    found = simulate("--preset", "scale", "--plot", str(tmp_path / "scale.png"))
    assert [(size["shards"], size["mtbf_s"]) for size in found["sizes"]] == [(8, 28 * HOUR), (16, 14 * HOUR)]
    assert set(found["sizes"][0]["strategies"]) == set(simulate()["strategies"])
    assert (tmp_path / "scale.png").exists()


def test_the_same_seed_gives_the_same_figures() -> None:
    assert simulate("--seed", "3") == simulate("--seed", "3")
    assert simulate("--seed", "3") != simulate("--seed", "4")


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    simulate("--plot", str(tmp_path / "paper.png"))
    assert (tmp_path / "paper.png").exists()


def test_a_manifest_says_what_it_can_and_saves_once() -> None:
    found = simulate("--file", QUICKSTART, "--hours", "10")
    assert found["preset"] is None
    assert not any(name.endswith("_async") for name in found["strategies"])
    job = job_of(SimulateOptions(file=Path(QUICKSTART)))
    assert (job.shards, job.lost, job.limit, job.mtbf_s) == (2, 1, 0.1, 43200)
    assert job.costs == Costs.measured()


def test_options_change_the_preset() -> None:
    assert job_of(SimulateOptions()) == PAPER
    assert job_of(SimulateOptions(preset="production")) == PRODUCTION
    options = SimulateOptions(hours=10, shards=100, mtbf_h=5, told_mtbf_h=50, lost_share=0.25, told_lost=2)
    job = job_of(options)
    assert (job.total_s, job.shards, job.lost) == (10 * HOUR, 100, 25)
    assert (job.mtbf_s, job.told_mtbf_s, job.told_lost) == (5 * HOUR, 50 * HOUR, 2)
    assert job_of(SimulateOptions(shards=2)).lost == 2
    assert job_of(SimulateOptions(lost_share=0.25)).told_lost == 2
    assert job_of(SimulateOptions(mtbf_h=5)).told_mtbf_s == 5 * HOUR
    assert job_of(SimulateOptions(lost_share=0.0)).lost == 1


def test_a_trace_is_replayed_in_every_run(tmp_path: Path) -> None:
    trace = tmp_path / "failures"
    trace.write_text("1 4\n1.5\n")
    found = simulate("--failures", f"trace:{trace}")["strategies"]["partial_naive"]
    assert found["load"] == pytest.approx(2 * PAPER.costs.load_s / PAPER.total_s)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--failures", "weekly"], "not one of exponential, gamma, storms, trace:FILE"),
        (["--failures", "trace:"], "not one of"),
        (["--failures", "trace:/nowhere"], "No such file"),
        (["--failures", "trace:TRACE"], "line 1"),
        (["--failures", "trace:MANY"], "takes more than the job's 8 shards"),
        (["--preset", "paper", "--file", QUICKSTART], "not both"),
        (["--preset", "scale", "--shards", "8"], "remove --shards"),
        (["--plot", "picture.txt"], "must end in"),
        (["--preset", "huge"], "paper"),
        (["--runs", "0"], "runs"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "TRACE").write_text("soon")
    (tmp_path / "MANY").write_text("1 9")
    arguments = [each.replace("trace:TRACE", f"trace:{tmp_path}/TRACE") for each in arguments]
    arguments = [each.replace("trace:MANY", f"trace:{tmp_path}/MANY") for each in arguments]
    result = runner.invoke(app, ["simulate", *FAST, *arguments])
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
