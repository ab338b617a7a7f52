"""What benches have in common: their CPRJob, and their result as JSON, tables and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_operator.api.spec import API_VERSION, KIND

# The CPRJob of a bench.


_BASE = {"accuracyBudget": {"portionOfLostSamples": 0.1}, "recovery": {"replay": {"mode": "Off"}}}


def bench_job(name: str, **spec: Any) -> dict[str, Any]:
    """A CPRJob as a document. No operator recovers it, so its budget has no effect.

    Unless the bench says otherwise it does not replay: figures of all releases are of the same work.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "none", **_BASE, **spec},
    }


# The result of a bench: one JSON document for programs, and the same in tables and sentences for people.


@dataclass(frozen=True, slots=True)
class Result:
    """document: plain JSON values. lines: what is printed in its place, from top to bottom."""

    document: Mapping[str, Any]
    lines: Iterable[str | Table]

    def show(self, console: Console, *, as_json: bool) -> None:
        """Print one of the two."""
        if as_json:
            console.print_json(json.dumps(self.document))
            return
        for line in self.lines:
            console.print(line, highlight=False, soft_wrap=isinstance(line, str))


def table(*titles: str, title: str | None = None) -> Table:
    """Return an empty table; figures stand to the right of the names in its first column."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for place, each in enumerate(titles):
        made.add_column(each, header_style="dim", justify="right" if place else "left")
    return made
