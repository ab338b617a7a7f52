"""The page of a job: one HTML file with charts and tables that needs no network, and its parts for `cprjob ui`."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import check_file
from cpr_operator.cli.pictures.charts import charts
from cpr_operator.cli.pictures.job_report import JobReport, facts, job_report, tables
from cpr_operator.cli.report import clock, failure_reason
from cpr_operator.cluster.local.object_files import EventLine

if TYPE_CHECKING:
    from cpr_operator.client import Event


def write_page(
    job: Mapping[str, Any], events: Iterable[EventLine | Event], now: float, path: Path, console: Console
) -> None:
    """Write the page of a CPRJob object, as of `now`, to a file. Raises InvalidStatusError, OptionError."""
    check_file("--html", path)
    text = page(job_report(job, events, now))
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise OptionError(f"--html {path}: {error.strerror}; name a file that can be written") from error
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def page(report: JobReport) -> str:
    """Return the page of a job."""
    return render("report.html", **contents(report), plotly=_packed_plotly())


def contents(report: JobReport) -> dict[str, Any]:
    """Return the variables of the templates."""
    recovery = report.status.recovery
    return {
        "report": report,
        "clock": clock,
        "facts": facts(report),
        "headline": failure_reason(report.status) or (recovery.reason if recovery else ""),
        "tables": tables(report),
        "charts": [asdict(each) for each in charts(report)],
    }


def render(template: str, **values: Any) -> str:
    """Render a template of the folder `pages`."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("cpr_operator.cli.pictures", "pages")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

    def source(name: str) -> Markup:
        """Return a style or a script unchanged. They are files of this package and need no escaping."""
        return Markup(loader.get_source(made, name)[0])  # noqa: S704

    made.globals["source"] = source
    return made


@cache
def _packed_plotly() -> str:
    """Return Plotly's script as gzip in base64: two megabytes instead of five. The page unpacks it."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 -- only a whole page needs it

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
