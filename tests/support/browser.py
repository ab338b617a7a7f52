"""Chromium without a window, and what it shows of a page. `browser` skips loudly where there is none.

CPR_CLUSTER_TESTS=required makes that an error where `tests/cluster/cluster.sh prepare` installs Chromium: on Debian, as
root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from support.runs import CPRJOB

CLUSTER = Path(__file__).parents[1] / "cluster" / "cluster.sh"
LOAD_MS, LAUNCH_MS = 60_000.0, 180_000.0
#: Each trace that Plotly has drawn in a chart, in the order of its legend: the name, and how many points it has.
SERIES = """chart => chart.data.map(trace => [trace.name, trace.x.length])"""
#: The words in a chart: titles of axes, names in the legend, ticks.
WORDS = """chart => [...chart.querySelectorAll('text')].map(each => each.textContent)"""


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium; the test is skipped if there is none, or fails where it should have been installed."""
    path = shutil.which("chromium")
    if path is None:
        message = "chromium is not installed: pages are not looked at"
        if os.environ.get("CPR_CLUSTER_TESTS") == "required" and _is_prepared():
            pytest.fail(f"CPR_CLUSTER_TESTS=required, but {message}, and cluster.sh prepare installs it")
        pytest.skip(message)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=LAUNCH_MS)
        try:
            yield opened
        finally:
            opened.close()


def _is_prepared() -> bool:
    """Return whether the suite's own preparation installs Debian packages on this machine."""
    done = subprocess.run([CLUSTER, "backend"], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "bare"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of `cprjob ui` over local runs; Ctrl-C ends it, without output."""
    command = (*CPRJOB, "ui", "--workdir", str(folder), "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            (address,) = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            yield address
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in {0, 130}
            assert process.stderr.read() == "", "it ends in order although a page is open"
        finally:
            process.kill()


class View:
    """A page as wide as `width` pixels, what went wrong in it, and what it asked for."""

    def __init__(self, opened: Browser, width: int, scheme: Literal["light", "dark"]) -> None:
        self.page: Page = opened.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(LOAD_MS)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def show(self, url: str, last_chart: str) -> None:
        """Open a page, and wait until its last chart is drawn."""
        self.page.goto(url)
        self.page.wait_for_selector(f"#{last_chart} .main-svg")

    def series(self, chart: str) -> list[list[Any]]:
        """The traces of a chart: name and number of points of each."""
        found: list[list[Any]] = self.page.eval_on_selector(f"#{chart}", SERIES)
        return found

    def texts(self, chart: str) -> list[str]:
        """All texts in a chart, as they are drawn."""
        found: list[str] = self.page.eval_on_selector(f"#{chart}", WORDS)
        return found

    def colour(self, selector: str, style: str) -> tuple[int, ...]:
        """A colour of an element, as it is seen: red, green and blue."""
        script = "(element, style) => getComputedStyle(element)[style]"
        text: str = self.page.eval_on_selector(selector, script, style)
        return tuple(int(part) for part in text[text.index("(") + 1 : -1].split(",")[:3])
