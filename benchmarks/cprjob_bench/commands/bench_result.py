"""Shared parts of the benches: their CPRJob, and their result as JSON, tables and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_operator.api.cprjob_spec import API_VERSION, KIND

_BASE = {"accuracyBudget": {"portionOfLostSamples": 0.1}, "recovery": {"replay": {"mode": "Off"}}}


def bench_job(name: str, **spec: Any) -> dict[str, Any]:
    """Return a CPRJob as a document. No operator recovers it, so its budget has no effect.

    Replay is off by default, so that the results of all releases are comparable.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "none", **_BASE, **spec},
    }


@dataclass(frozen=True, slots=True)
class Result:
    """A result as one JSON document, and as lines of text and tables.

    document: plain JSON values. lines: from top to bottom.
    """

    document: Mapping[str, Any]
    lines: Iterable[str | Table]

    def show(self, console: Console, *, as_json: bool) -> None:
        """Print the document or the lines."""
        if as_json:
            console.print_json(json.dumps(self.document))
            return
        for line in self.lines:
            console.print(line, highlight=False, soft_wrap=isinstance(line, str))


def table(*titles: str, title: str | None = None) -> Table:
    """Return an empty table with names in its first column and right-aligned values in the others."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for place, each in enumerate(titles):
        made.add_column(each, header_style="dim", justify="right" if place else "left")
    return made
