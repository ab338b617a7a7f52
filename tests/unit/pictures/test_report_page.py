"""The page of a job: each chart is one that Plotly takes, all that is known is in it, and nothing of it is fetched."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go

from cpr_operator.api.status import Shard, Status
from cpr_operator.cli.pictures.charts import MAX_LANES, Chart, charts
from cpr_operator.cli.pictures.job_report import facts, job_report, tables
from cpr_operator.cli.pictures.report_page import page
from support.example_report import EVENTS, START, STATUS, TOTAL, document, failed

REPORT = job_report(document(), EVENTS, START + 100)
NEW = job_report({"metadata": {"name": "new"}}, (), START)


def chart(name: str, status: Status = STATUS) -> Chart:
    (found,) = (each for each in charts(job_report(document(status), (), START + 100)) if each.id == name)
    return found


def values(name: str, trace: str) -> list[tuple[Any, Any]]:
    (found,) = (each for each in chart(name).data if each["name"] == trace)
    return list(zip(found["x"], found["y"], strict=True))


def test_plotly_accepts_every_chart_and_every_job_has_the_same_ones() -> None:
    for each in (*charts(REPORT), *charts(NEW)):
        go.Figure({"data": each.data, "layout": each.layout})  # raises for unknown properties
    assert [each.id for each in charts(REPORT)] == [each.id for each in charts(NEW)]
    assert [each.id for each in tables(REPORT)] == [each.id for each in tables(NEW)]


def test_line_has_a_gap_at_a_rollback() -> None:
    assert values("auc", "AUC") == [
        (10_000, None), (30_000, 0.7), (40_000, 0.7), (None, None), (20_000, 0.7), (60_000, 0.76),
    ]  # fmt: skip


def test_charts_draw_their_values() -> None:
    assert values("loss", "training loss")[-1] == (60_000, 0.44)
    assert values("loss", "log loss")[-1] == (60_000, 0.46)
    assert values("calibration", "calibration")[-1] == (60_000, 1.01)
    assert values("speed", "while nothing is saved")[-1] == (60_000, 900.0)
    assert values("budget", "lost")[-1] == (60_000, 0.01)
    assert values("budget", "allowed") == [(0, 0.1), (TOTAL, 0.1)]
    assert values("saves", "not in an anchor")[-1] == (60_000, 10_000)
    assert values("saves", "anchors to go back to") == [(50_000, 0)]
    assert values("interval", "Partial")[:3] == [(10_000, 60.0), (30_000, 60.0), (40_000, 60.0)]
    assert values("interval", "Full")[-2:] == [(20_000, 30.0), (60_000, 30.0)]
    assert values("failures", "Partial") == [("2025-11-24 16:00:20.000", 5.0)]
    assert values("replicas", "shards")[-1] == (60_000, 2)


def test_time_chart_has_all_parts_and_the_failures_on_the_time_to_recover() -> None:
    *parts, marks = chart("time").data
    shown = {each["name"]: each["x"][0] for each in parts}
    assert shown == {"productive": 75, "starting": 5, "recovering": 12, "repeated": 8}
    assert marks["x"] == [80, 85, 90, 92]  # four of 5 s each begin within the 12 s; the fifth is not over
    assert marks["text"][0] == "shard/1 Killed: 5.0 s"
    (table,) = (each for each in tables(REPORT) if each.id == "table-time")
    assert table.rows[0] == ("productive", "75.000 s", "75.00%")


def test_charts_mark_failures() -> None:
    assert [each["x0"] for each in chart("auc").layout["shapes"]] == [10_000, 20_000, 30_000, 40_000]


def test_ledger_chart_has_each_lost_range_of_each_shard() -> None:
    (trace,) = chart("ledger").data
    assert (trace["y"], trace["base"], trace["x"]) == (["shard/0"], [1000], [1000])


def test_members_chart_has_a_line_for_unavailable_members() -> None:
    unavailable = values("members", "unavailable")
    assert ("2025-11-24 16:00:20.000", "shard/1") in unavailable
    assert {member for _, member in unavailable} == {"shard/0", "shard/1", "trainer/0", None}


def test_members_chart_of_many_members_has_only_failed_ones() -> None:
    shards = tuple(Shard(index=index) for index in range(MAX_LANES + 1))
    many = chart("members", STATUS.evolve(shards=shards, failures=(failed(20, 3),)))
    assert {member for trace in many.data for member in trace["y"]} == {"shard/3", None}
    assert many.note.startswith(f"{MAX_LANES + 1} members")


def test_facts_have_progress_quality_and_cost() -> None:
    found = dict(facts(REPORT))
    assert found["trained"] == "60,000 of 100,000 samples"
    assert found["AUC"] == "0.7600"
    assert found["calibration"] == "1.0100"
    assert found["budget"] == "1.000% of 10.000% lost"


def test_page_has_no_external_links() -> None:
    text = page(REPORT)
    own = re.sub(r'<script type="application/gzip".*?</script>', "", text, flags=re.DOTALL)
    assert len(own) < 100_000
    assert len(text) < 2_500_000
    links = re.findall(r"(?:src|href)=[\"']([^\"']*)|url\(|@import|https?://\S+", own)
    assert links == ["data:,"]


def test_page_escapes_foreign_text() -> None:
    text = page(REPORT)
    assert "<b>of the budget" not in text
    assert "&lt;b&gt;of the budget" in text
    assert "a save &lt;i&gt;every&lt;/i&gt; minute" in text
    named = job_report(document() | {"metadata": {"name": "</script><script>alert(1)"}}, (), START)
    assert "<script>alert" not in page(named)
