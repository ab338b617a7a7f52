"""`cprjob report --html` as a browser shows it: every chart is drawn, light and dark, on a phone and a desktop."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from cpr_operator.cli.pictures.charts import charts
from cpr_operator.cli.pictures.job_report import job_report
from cpr_operator.cli.pictures.report_page import page
from support.browser import View
from support.example_report import EVENTS, START, document

REPORT = job_report(document(), EVENTS, START + 100)
CHARTS = charts(REPORT)
LAST = CHARTS[-1].id
INK = "getComputedStyle(document.querySelector('#auc .xtitle')).fill"


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(page(REPORT), "utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_report_draws_every_chart_within_the_window(
    chromium: Browser, report_file: Path, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    view = View(chromium, width, scheme)
    view.show(report_file.as_uri(), LAST)
    view.page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000
    for chart in CHARTS:
        assert view.series(chart.id) == [[trace["name"], len(trace["x"])] for trace in chart.data], chart.id
        texts = view.texts(chart.id)
        titles = {chart.layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")} - {""}
        drawn = {trace["name"] for trace in chart.data if any(value is not None for value in trace["y"])}
        assert titles | drawn <= set(texts), chart.id
    assert view.page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [view.page.locator(f"#{chart.id}").bounding_box() for chart in CHARTS]
    assert all(box is not None and 300 < box["width"] < 800 and box["height"] > 200 for box in boxes)
    rows = len({box["y"] for box in boxes if box})
    assert rows == len(CHARTS) if width == 400 else rows < len(CHARTS)
    assert view.errors == []
    assert view.requests == [report_file.as_uri()]


def test_report_follows_the_colour_scheme(chromium: Browser, report_file: Path) -> None:
    view = View(chromium, 1600, "light")
    view.show(report_file.as_uri(), LAST)
    seen = {}
    for scheme in ("light", "dark"):
        view.page.emulate_media(color_scheme=scheme)
        paper = sum(view.colour("body", "backgroundColor"))
        view.page.wait_for_function(f"{INK} === getComputedStyle(document.body).color")
        ink = sum(view.colour("#auc .xtitle", "fill"))
        assert abs(paper - ink) > 300, scheme
        seen[scheme] = paper
    assert seen["dark"] < 100
    assert seen["light"] > 600


def test_report_escapes_markup(chromium: Browser, report_file: Path) -> None:
    view = View(chromium, 1600, "light")
    view.show(report_file.as_uri(), LAST)
    assert "The rest <b>of the budget</b> is small." in view.page.inner_text("#table-plan")
    assert "a save <i>every</i> minute" in view.page.inner_text("#table-events")
