"""The screenshots of the documentation: `PYTHONPATH=tests python -m support.screenshots RUNS REPORT LIST TIME`.

RUNS is a folder of local runs. REPORT.png becomes the report of the first by name, as far as its ledger, LIST.png the
list of all jobs that `cprjob ui` shows, and TIME.png the bar of the first job's time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from support.browser import View, browser, serving
from support.runs import CPRJOB

WIDTH, HEIGHT, LIST_WIDTH, LIST_HEIGHT = 1300, 1405, 720, 280


def main(runs: Path, report: Path, listed: Path, time: Path) -> None:
    """Take all."""
    with browser() as chromium, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        first = min(each for each in runs.iterdir() if each.is_dir())
        subprocess.run((*CPRJOB, "report", "--workdir", str(first), "--html", str(page)), check=True)
        view = View(chromium, WIDTH, "light")
        view.show(page.as_uri(), "replicas")
        view.page.screenshot(path=report, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})
        view.page.locator("figure", has=view.page.locator("#time")).screenshot(path=time)
        with serving(runs) as address:
            view.page.set_viewport_size({"width": LIST_WIDTH, "height": LIST_HEIGHT})
            view.page.goto(address)
            view.page.wait_for_selector("#list tbody tr")
            view.page.screenshot(path=listed)


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:]))
