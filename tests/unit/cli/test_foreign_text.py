"""Text of pods, events, files and the cluster is printed without control characters."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Callable

import pytest
from rich.console import RenderableType

from cpr_contract.requests import ColumnStats, DataStats, Imported, ImportedTable
from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.status import Condition, FailureRecord, Plan, Status
from cpr_operator.api.terminal_text import printable_log
from cpr_operator.cli import data_inspect, importing, report
from cpr_operator.cli.console import SafeConsole, show_invalid
from cpr_operator.cli.job_views import description, events_table
from cpr_operator.cli.progress_display import LiveProgress, PlainProgress, ProgressState
from cpr_operator.client import Event, Job
from support.documents import edited

#: Clears the screen, sets the title, moves the cursor by C1, rings; then markup of rich.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\x85\r\x08[/nothing][red]"
STATUS = Status(
    phase="Failed",
    plan=Plan(mode="Partial", interval_seconds=2, reason=HOSTILE),
    conditions=tuple(
        Condition(type=kind, status="True", reason="Reason", message=HOSTILE, last_transition_time=0)
        for kind in ("Failed", "SnapshotsDegraded")
    ),
    failures=(FailureRecord(time=0, role="shard", index=0, incarnation=1, kind=HOSTILE, message=HOSTILE),),
)
EVENT = Event(0.0, HOSTILE, HOSTILE, HOSTILE, "uid")
METADATA = {"namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
JOB = Job(edited({"status": STATUS.to_dict()}) | {"metadata": {"name": "job", **METADATA}})
STATS = DataStats(
    format="CSV", header=True, files=1, rows=1, bad=1, faults=(HOSTILE,),
    columns=(ColumnStats(HOSTILE, HOSTILE, 0, None, None, None, HOSTILE),), reading=None, advice=(HOSTILE,),
)  # fmt: skip
TABLE = ImportedTable(HOSTILE, HOSTILE, 1, 2, 3, "XXH64", sums=False)


def shown(renderable: RenderableType) -> Callable[[SafeConsole], None]:
    return lambda console: console.print(renderable)


def progress_of(progress: type[LiveProgress | PlainProgress]) -> Callable[[SafeConsole], None]:
    def show(console: SafeConsole) -> None:
        showing = progress(console)
        showing.print(HOSTILE)
        showing.show(ProgressState("job", 1.0, STATUS, None))
        showing.close()

    return show


@pytest.mark.parametrize(
    "show",
    [
        lambda console: report.print_summary(console, HOSTILE, STATUS, None, HOSTILE),
        shown(events_table([EVENT])),
        shown(description(JOB, [EVENT])),
        progress_of(PlainProgress),
        progress_of(LiveProgress),
        lambda console: data_inspect.show(STATS, console),
        lambda console: importing.show(Imported("key", (TABLE,), None, (HOSTILE,), (HOSTILE,), (HOSTILE,)), console),
        lambda console: show_invalid(HOSTILE, (Invalid(HOSTILE, HOSTILE, HOSTILE),), console),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_foreign_text_is_printed_without_control_characters(
    show: Callable[[SafeConsole], None],
    terminal: bool,  # noqa: FBT001
) -> None:
    console = SafeConsole(file=io.StringIO(), width=400, force_terminal=terminal, color_system=None)
    show(console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    own = "\x1b" if terminal else ""  # rich hides the cursor while it draws
    found = {each for each in text if unicodedata.category(each) == "Cc"}
    assert found <= {"\n", *own, *("\r" if terminal else "")}
    assert "[2J" in text
    assert "\x1b[2J" not in text
    assert "\x1b]" not in text


def test_json_keeps_control_characters_as_escapes() -> None:
    console = SafeConsole(file=io.StringIO(), width=400)
    console.print_json(json.dumps({"message": HOSTILE}))
    console.print_json(json.dumps({"message": "é"}))
    assert isinstance(console.file, io.StringIO)
    first, second = console.file.getvalue().split("}\n", 1)
    assert json.loads(first + "}") == {"message": HOSTILE}
    assert "é" in second


def test_log_keeps_its_colours_and_carriage_returns() -> None:
    allowed = "\x1b[1;31mred\x1b[0m\t5%\r6%"
    assert printable_log(f"{allowed}\x1b[2J\x1b]0;t\x07\x9b1m") == f"{allowed}[2J]0;t1m"
