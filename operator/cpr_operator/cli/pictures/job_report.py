"""The report model of a job: its history, members and failures over time, and the facts and tables of its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from cpr_operator.api.progress_status import HistoryPoint
from cpr_operator.api.status import FailureRecord, Status
from cpr_operator.api.validate import parse_status
from cpr_operator.cli.report import (
    UNKNOWN,
    at_most,
    cause_text,
    clock,
    duration_text,
    overall_speed,
    trained,
    workers_of,
)
from cpr_operator.cluster.local.object_files import EventLine
from cpr_operator.goodput import projected
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.effects import point

if TYPE_CHECKING:
    from cpr_operator.client import Event

#: The newest events that a page shows.
MAX_EVENTS = 100
#: The outcome of a failure. `Replayed` and `NothingLost` cost no samples, `Partial` did. `RolledBack` cost the time
#: since the anchor.
FailureOutcome = Literal["Replayed", "NothingLost", "Partial", "RolledBack", "UnderWay"]


@dataclass(frozen=True, slots=True)
class Span:
    """A period in which a member was at work, or unavailable, in seconds since the epoch."""

    member: str
    begin: float
    end: float
    unavailable: bool


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job at the time `now`. points: its history, oldest first, with the present state at the end."""

    name: str
    namespace: str
    now: float
    status: Status
    points: tuple[HistoryPoint, ...]
    events: tuple[EventLine | Event, ...]

    @property
    def end(self) -> float:
        """Return the end of the job, or now while it is not over."""
        return self.status.completion_time or self.now

    def samples_at(self, time: float) -> int:
        """Return the samples that were trained by then, according to the history."""
        return next((each.samples for each in reversed(self.points) if each.time <= time), 0)

    def times(self) -> dict[str, float]:
        """Return the seconds of productive time and of each cause of lost time; none before the job is accounted."""
        goodput = self.status.goodput
        if goodput is None:
            return {}
        known = projected(goodput, self.now)
        return {"productive": known.productive_seconds} | {cause_text(cause): value for cause, value in known.lost}

    def spans(self) -> Iterator[Span]:
        """Yield the periods of each member, member by member."""
        failed: dict[str, list[FailureRecord]] = {}
        for record in self.status.failures:
            failed.setdefault(f"{record.role}/{record.index}", []).append(record)
        for member in self.status.members:
            begin = self.status.start_time or self.now
            for record in failed.get(member.name, ()):
                lost = back = record.time
                if record.process:  # a restart in place is recorded after it is over
                    lost -= record.recovery_seconds or 0.0
                else:
                    back = self.end if (took_s := record.recovery_seconds) is None else min(lost + took_s, self.end)
                if lost > begin:
                    yield Span(member.name, begin, lost, unavailable=False)
                yield Span(member.name, max(lost, begin), max(back, begin), unavailable=True)
                begin = max(back, begin)
            if begin < self.end:
                yield Span(member.name, begin, self.end, unavailable=False)


def job_report(job: Mapping[str, Any], events: Iterable[EventLine | Event], now: float) -> JobReport:
    """Return the report of a CPRJob object. Raises InvalidStatusError."""
    meta, status = job["metadata"], parse_status(job.get("status") or {})
    points = status.history
    if status.progress.updated is not None and status.progress.total_samples:
        last = point(status, status.progress.updated)
        points = (*(each for each in points if each.time < last.time), last)
    return JobReport(meta["name"], meta.get("namespace", ""), now, status, points, tuple(events))


def outcome(record: FailureRecord) -> FailureOutcome:
    """Return the outcome of a failure."""
    if record.action == "RollBack":
        return "RolledBack"
    if record.lost_samples is None:
        return "UnderWay"
    if record.lost_samples:
        return "Partial"
    return "Replayed" if record.replayed_samples else "NothingLost"


def speeds(points: tuple[HistoryPoint, ...]) -> list[float | None]:
    """Return the samples per second from each point to the next, with pauses; None first and across a rollback."""
    found: list[float | None] = [None] if points else []
    for before, after in pairwise(points):
        elapsed_s = after.time - before.time
        known = elapsed_s > 0 and after.generation == before.generation
        found.append((after.samples - before.samples) / elapsed_s if known else None)
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """One table. note: the text in place of rows if there are none."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def facts(report: JobReport) -> tuple[tuple[str, str], ...]:
    """Return the values at the head of the page, by name."""
    status = report.status
    progress, budget = status.progress, status.budget
    speed = overall_speed(status) or progress.samples_per_second
    workers = workers_of(status)
    return (
        ("trained", trained(status)),
        ("speed", UNKNOWN if speed is None else f"{speed:,.0f} samples/s"),
        ("goodput", status.shown.goodput or UNKNOWN),
        ("AUC", _number(progress.auc)),
        ("log loss", _number(progress.logloss)),
        *((name, _number(value)) for name, value in sorted(progress.metrics.items())),
        *_segment(status),
        *_held_out(status),
        ("budget", UNKNOWN if budget is None else f"{budget.spent:.3%} of {budget.limit:.3%} lost"),
        ("rollbacks", UNKNOWN if budget is None else str(budget.rollbacks)),
        ("row updates lost", at_most(status.lost_row_updates, exact=status.lost_row_updates_exact)),
        ("samples replayed", f"{progress.replayed_samples:,}"),
        ("pods replaced", str(status.restarts)),
        ("workers in each trainer", UNKNOWN if workers is None else str(workers.count)),
    )


def _segment(status: Status) -> tuple[tuple[str, str], ...]:
    """Return the scores of the newest complete segment, if the job follows its data."""
    found = status.progress.segment
    if found is None:
        return ()
    return (
        ("newest segment", f"up to pin {found.pin:,}, {found.scored:,} samples"),
        ("segment AUC", _number(found.auc)),
        ("segment log loss", _number(found.logloss)),
        ("segment normalised entropy", _number(found.normalised_entropy)),
        ("segment calibration", _number(found.calibration)),
    )


def _held_out(status: Status) -> tuple[tuple[str, str], ...]:
    """Return the scores on held-out rows, if the job has them."""
    found, best = status.progress.held_out, status.best
    if found is None:
        return ()
    scores = (
        ("held-out AUC", _number(found.auc)),
        ("held-out log loss", _number(found.logloss)),
        ("held-out normalised entropy", _number(found.normalised_entropy)),
        *((("held-out GAUC", _number(found.gauc)),) if found.groups else ()),
    )
    if best is None:
        return scores
    place = f"{_number(best.value)} at {best.anchor.samples:,} samples, {best.since} evaluations ago"
    return (*scores, ("best evaluation", place))


def tables(report: JobReport) -> tuple[Table, ...]:
    """Return all tables, the same for every job."""
    return (
        _failures(report),
        _groups(report),
        _plan(report),
        _times(report),
        _overhead(report),
        _conditions(report),
        _members(report),
        _events(report),
    )


def _failures(report: JobReport) -> Table:
    columns = ("time", "member", "failure", "outcome", "action", "lost", "replayed", "row updates lost", "recovered in")
    rows = tuple(
        (
            clock(each.time),
            f"{each.role}/{each.index}",
            each.kind + (f": {each.message}" if each.message else ""),
            outcome(each),
            each.action or UNKNOWN,
            UNKNOWN if each.lost_samples is None else f"{each.lost_samples:,}",
            f"{each.replayed_samples:,}",
            at_most(each.lost_row_updates, exact=each.lost_row_updates_exact),
            duration_text(each.recovery_seconds),
        )
        for each in report.status.failures
    )
    return Table("table-failures", "Failures", columns, rows, "Nothing has failed.")


def _groups(report: JobReport) -> Table:
    found = report.status.progress.held_out
    groups = () if found is None else (*found.groups, *filter(None, (found.rest,)))
    columns = ("group", "samples", "AUC", "log loss", "normalised entropy", "calibration")
    rows = tuple(
        (
            each.name,
            f"{each.samples:,}",
            *map(_number, (each.auc, each.logloss, each.normalised_entropy, each.calibration)),
        )
        for each in groups
    )
    return Table("table-groups", "Held-out scores by group", columns, rows, "The job has no spec.evaluation.groupBy.")


def _plan(report: JobReport) -> Table:
    plan = report.status.plan
    if plan is None:
        return Table("table-plan", "Plan", (), (), "There is no plan yet.")
    rows = (
        ("mode", plan.mode),
        ("interval", duration(plan.interval_seconds)),
        ("why", plan.reason),
        *((name, f"{value:.6g}") for name, value in sorted(plan.inputs.items())),
    )
    return Table("table-plan", "Plan", ("", "now"), rows)


def _times(report: JobReport) -> Table:
    times = report.times()
    wall_s = sum(times.values())
    rows = tuple((name, f"{value:.3f} s", f"{value / wall_s:.2%}") for name, value in times.items() if value)
    return Table("table-time", "Time", ("", "so far", "part"), rows, "No time is accounted yet.")


def _overhead(report: JobReport) -> Table:
    cost = report.status.overhead
    rows = (
        ("saves", f"{cost.save_seconds:.1f} s"),
        ("loading saves", f"{cost.load_seconds:.1f} s"),
        ("training again after rollbacks", f"{cost.lost_seconds:.1f} s"),
        ("waiting for new processes", f"{cost.reschedule_seconds:.1f} s"),
    )
    return Table("table-overhead", "Cost of fault tolerance", ("", "so far"), rows)


def _conditions(report: JobReport) -> Table:
    rows = tuple(
        (each.type, each.status, each.reason, each.message, clock(each.last_transition_time))
        for each in report.status.conditions
    )
    return Table("table-conditions", "Conditions", ("condition", "status", "reason", "message", "since"), rows,
                 "The operator has not seen the job yet.")  # fmt: skip


def _members(report: JobReport) -> Table:
    rows = tuple(
        (each.name + (" (leads)" if each.role == "trainer" and each.index == report.status.leader else ""), each.state,
         str(each.incarnation), each.pod, each.node)
        for each in report.status.members
    )  # fmt: skip
    return Table(
        "table-members", "Members", ("member", "state", "incarnation", "pod", "node"), rows, "There are no members yet."
    )


def _events(report: JobReport) -> Table:
    rows = tuple((clock(each.time), each.type, each.reason, each.message) for each in report.events[-MAX_EVENTS:])
    note = "There are none: Kubernetes keeps events for an hour, and a file has none."
    return Table("table-events", "Events", ("time", "type", "reason", "message"), rows, note)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"
