"""`cprjob bench scale`: exponents and marks of curves, sizes and jobs, and documents of many members."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cpr_contract.codec import from_json
from cpr_contract.roster import MAX_ROSTER_BYTES, TrainerRoster
from cpr_operator.api.validate import validate
from cpr_operator.cli.app import app
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.desired.rosters import Rosters
from cpr_operator.reconcile import reconcile
from cprjob_bench.commands.growth import Curve, Point, exponent_of
from cprjob_bench.commands.large_job import all_report
from cprjob_bench.commands.member_scale import document_curves
from cprjob_bench.commands.scale_bench import JOBS, ScaleOptions, document, result, sizes_of
from cprjob_bench.options import ScaleCurve


def curve(*costs: float) -> Curve:
    points = (Point(str(10**place), 10**place, cost) for place, cost in enumerate(costs))
    return Curve("shards", "us", tuple(points))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponent_is_the_power_of_the_size(power: float) -> None:
    assert exponent_of((size, 3 * size**power) for size in (2, 4, 16, 64)) == pytest.approx(power)


def test_exponent_is_fitted_by_least_squares_of_logarithms() -> None:
    assert exponent_of([(1, 1), (10, 100), (100, 100)]) == pytest.approx(1.0)
    assert exponent_of([(5, 1)]) is None
    assert exponent_of([(5, 1), (5, 2)]) is None


@pytest.mark.parametrize(
    ("found", "defect"),
    [
        (curve(1, 10, 100), None),
        (curve(1, 12, 144), None),
        (curve(1, 13, 169), "us grow with shards to the power 1.11, above 1.1"),
        (curve(1, 100, 10_000), "us grow with shards to the power 2.00, above 1.1"),
        (curve(7), None),
    ],
)
def test_growth_above_linear_is_a_defect_with_its_reason(found: Curve, defect: str | None) -> None:
    assert found.defect == defect


def test_result_has_exponents_and_skipped_sizes() -> None:
    found = result({"roster": curve(1, 100)}, ["rows 1e9: left out"]).document
    assert found["skipped"] == ["rows 1e9: left out"]
    points = [{"size": "1", "cost": 1}, {"size": "10", "cost": 100}]
    assert found["curves"]["roster"]["points"] == points
    assert found["curves"]["roster"]["exponent"] == pytest.approx(2.0)


def options(*curves: ScaleCurve, sizes: tuple[str, ...] = (), limit_mib: int = 256) -> ScaleOptions:
    return ScaleOptions(curves or tuple(ScaleCurve), sizes, limit_mib, 3, json=True)


def test_sizes_of_a_curve_are_replaced_by_the_users() -> None:
    found = sizes_of(options(ScaleCurve.ROWS, ScaleCurve.SHARDS, sizes=("rows=1e4,2000",)))
    assert found == {ScaleCurve.ROWS: ("1e4", "2000"), ScaleCurve.SHARDS: ("2", "4", "8")}
    assert sizes_of(options(ScaleCurve.SAVES, limit_mib=16384)) == {ScaleCurve.SAVES: ("256", "1024", "4096", "16384")}
    assert sizes_of(options(ScaleCurve.SAVES, limit_mib=2)) == {ScaleCurve.SAVES: ("1", "2")}
    assert sizes_of(options()).keys() == set(ScaleCurve)


@pytest.mark.parametrize("sizes", ["row=1", "rows=1.5", "rows=", "rows=0", "rows=x", "documents=4", "passes=0x3"])
def test_wrong_sizes_are_refused(sizes: str) -> None:
    with pytest.raises(OptionError):
        sizes_of(options(sizes=(sizes,)))


@pytest.mark.parametrize("name", JOBS)
def test_job_of_a_curve_is_valid(name: ScaleCurve) -> None:
    for sweeps in (False, True):
        assert validate(document(JOBS[name], Path("/store"), sweeps=sweeps)) == ()


def test_documents_are_those_of_the_operator() -> None:
    found = document_curves(("3x2", "6x4"))
    status = reconcile(all_report(3, 2)).status
    rosters = Rosters(status)
    texts = [rosters.document(member, member.incarnation).text for member in status.members]
    of_trainer = from_json(TrainerRoster, texts[-1])
    assert [len(of_trainer.shards), len(of_trainer.trainers)] == [3, 2]
    assert all(peer.host for peer in of_trainer.shards)
    assert status.phase == "Running"
    costs = {name: each.points[0].cost for name, each in found.items()}
    text = json.dumps(status.to_dict(), separators=(",", ":"))
    assert costs == {"roster": max(map(len, texts)), "rosters": sum(map(len, texts)), "status": len(text)}
    assert [point.size for point in found["status"].points] == [5, 10]


def test_largest_job_has_rosters_that_a_pod_accepts() -> None:
    (point,) = document_curves(("1024x256",))["roster"].points
    assert point.cost < MAX_ROSTER_BYTES


def test_command_prints_curves_without_processes() -> None:
    command = ["bench", "scale", "--curve", "documents", "--curve", "passes", "--json"]
    found = CliRunner().invoke(app, [*command, "--sizes", "documents=2x1,8x4", "--sizes", "passes=2x1,8x4"])
    assert found.exit_code == 0, found.output
    curves = json.loads(found.stdout)["curves"]
    assert curves.keys() == {"roster", "rosters", "status", "pass"}
    assert [point["size"] for point in curves["pass"]["points"]] == ["2x1", "8x4"]
