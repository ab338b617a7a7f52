"""A job's page as one HTML file that needs no network: words, tables and charts, with Plotly packed into it."""

from __future__ import annotations

import base64
import gzip
from dataclasses import asdict
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cpr_operator.cli.pictures.charts import charts
from cpr_operator.cli.pictures.story import Story
from cpr_operator.cli.pictures.tables import clock, facts, headline, tables


def page(story: Story) -> str:
    """The page of a job as it is."""
    return render("report.html", **contents(story), plotly=_packed_plotly())


def contents(story: Story) -> dict[str, Any]:
    """What templates show of a job."""
    return {
        "story": story,
        "clock": clock,
        "facts": facts(story),
        "headline": headline(story.status),
        "tables": tables(story),
        "charts": [asdict(each) for each in charts(story)],
    }


def render(template: str, **values: Any) -> str:
    """A template of the folder `pages`."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("cpr_operator.cli.pictures", "pages")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

    def source(name: str) -> Markup:
        """A style or a script as it is: ours, so nothing in it has to be escaped."""
        return Markup(loader.get_source(made, name)[0])  # noqa: S704

    made.globals["source"] = source
    return made


@cache
def _packed_plotly() -> str:
    """Plotly's script, gzip in base64: two megabytes instead of five. The page unpacks it."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 -- what only shows words does not need it

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
