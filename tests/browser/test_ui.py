"""`cprjob ui` over local runs, in a browser: the list and a job's charts follow what the operator writes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from cpr_operator.api.status import Shown, Status
from cpr_operator.cli.pictures.charts import charts
from cpr_operator.cli.pictures.job_report import job_report
from cpr_operator.cluster.local.object_files import append_event, write_json
from cpr_operator.cluster.protocol import Event
from support.browser import LOAD_MS, View, serving
from support.example_report import EVENTS, START, STATUS, document
from support.runs import CPRJOB

LAST = charts(job_report(document(), EVENTS, START))[-1].id


def write_status(run: Path, status: Status) -> None:
    """Write a status as the operator of a local run does."""
    write_json(run / "jobs" / "here" / "example.json", document(status))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_status(tmp_path / "first", STATUS.evolve(shown=Shown(progress="60%", auc="0.7600")))
    return tmp_path / "first"


def test_ui_list_and_charts_follow_the_job(chromium: Browser, run: Path) -> None:
    expect.set_options(timeout=LOAD_MS)
    with serving(run.parent) as address:
        view = View(chromium, 1600, "light")
        view.page.goto(address)
        expect(view.page.locator("#list tbody tr")).to_have_text(re.compile(r"first/example\s*Running\s*60%.*0\.7600"))
        view.page.click("text=first/example")
        view.page.wait_for_selector(f"#{LAST} .main-svg")
        assert view.series("auc") == [["AUC", 6]]
        more = STATUS.progress.evolve(samples=70_000, updated=START + 95)
        grown = job_report(document(), (), START).points
        write_status(run, STATUS.evolve(phase="Succeeded", progress=more, history=grown))
        append_event(run, "uid", Event("Normal", "Succeeded", "the model is there", "k"), START + 95)
        expect(view.page.locator("h1")).to_have_text(re.compile(r"example\s*Succeeded"))
        expect(view.page.locator("#table-events")).to_contain_text("the model is there")
        view.page.wait_for_function("document.getElementById('auc').data[0].x.length === 7")
        assert view.page.title() == "example: Succeeded"
        view.page.goto(address)
        expect(view.page.locator("#list tbody tr")).to_contain_text("Succeeded")
        assert view.errors == []
        assert {url.removeprefix(address).partition("/jobs")[0] for url in view.requests} == {
            "/",
            "",
            "/events",
            "/plotly.js",
        }


def test_ui_shows_a_fault_until_it_is_over(chromium: Browser, run: Path) -> None:
    expect.set_options(timeout=LOAD_MS)
    with serving(run) as address:
        view = View(chromium, 400, "dark")
        view.show(f"{address}/jobs/first/example", LAST)
        (run / "jobs" / "here" / "example.json").unlink()
        expect(view.page.locator("#fault")).to_contain_text("there is no job first/example")
        write_status(run, STATUS)
        expect(view.page.locator("#fault")).to_be_hidden()
        assert view.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_ui_only_reads_and_answers_this_machine_alone(run: Path) -> None:
    with serving(run) as address, httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 400
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert client.request(method, "/jobs/first/example").status_code == 405
        assert client.get("/jobs/first/nobody").status_code == 404


def test_ui_of_a_folder_without_a_job_fails(tmp_path: Path) -> None:
    done = subprocess.run((*CPRJOB, "ui", "--workdir", tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no job in" in done.stderr
