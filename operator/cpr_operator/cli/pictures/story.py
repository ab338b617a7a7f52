"""What is known of a job and can be drawn, and what its page says in words and figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from cpr_operator.api.progress import PointFigures
from cpr_operator.api.status import FailureRecord, Status
from cpr_operator.api.validate import parse_status
from cpr_operator.cli.report import UNKNOWN, ended_because, overall_speed, took, trained, workers_of
from cpr_operator.cluster.local.objects import EventLine
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.effects import point

#: What became of a failure: `Replayed` and `NothingLost` cost no samples, `Partial` did, and `RolledBack` those of no
#: shard, but the time since the anchor.
Tier = Literal["Replayed", "NothingLost", "Partial", "RolledBack", "UnderWay"]


@dataclass(frozen=True, slots=True)
class Span:
    """A time, in seconds since the epoch, in which a member was at work, or away."""

    member: str
    begin: float
    end: float
    away: bool


@dataclass(frozen=True, slots=True)
class Story:
    """One job. now: when it was looked at. points: how training went, oldest first, the last one as it is now."""

    name: str
    namespace: str
    now: float
    status: Status
    points: tuple[PointFigures, ...]
    said: tuple[EventLine, ...]

    @property
    def end(self) -> float:
        """The end of the job; of one that goes on, now."""
        return self.status.completion_time or self.now

    def samples_at(self, time: float) -> int:
        """Samples that were trained by then, as far as the history tells."""
        return next((each.samples for each in reversed(self.points) if each.time <= time), 0)

    def _away(self, record: FailureRecord) -> tuple[float, float]:
        """From when to when a member was away. Of one that went on in place the operator heard after the fact."""
        took_s = record.recovery_seconds
        if record.life:
            return record.time - (took_s or 0.0), record.time
        return record.time, self.end if took_s is None else min(record.time + took_s, self.end)

    def spans(self) -> Iterator[Span]:
        """When each member was at work and when it was away, member by member. Of those that never failed, all."""
        failed: dict[str, list[FailureRecord]] = {}
        for record in self.status.failures:
            failed.setdefault(f"{record.role}/{record.index}", []).append(record)
        for member in self.status.members:
            begin = self.status.start_time or self.now
            for record in failed.get(member.name, ()):
                lost, back = self._away(record)
                if lost > begin:
                    yield Span(member.name, begin, lost, away=False)
                yield Span(member.name, max(lost, begin), max(back, begin), away=True)
                begin = max(back, begin)
            if begin < self.end:
                yield Span(member.name, begin, self.end, away=False)


def story_of(job: Mapping[str, Any], said: Iterable[EventLine], now: float) -> Story:
    """The story of a CPRJob object. Raises InvalidStatusError."""
    meta, status = job["metadata"], parse_status(job.get("status") or {})
    points = status.history
    if status.progress.updated is not None and status.progress.total_samples:
        last = point(status, status.progress.updated)
        points = (*(each for each in points if each.time < last.time), last)
    return Story(meta["name"], meta.get("namespace", ""), now, status, points, tuple(said))


def tier(record: FailureRecord) -> Tier:
    """What became of a failure."""
    if record.action == "RollBack":
        return "RolledBack"
    if record.lost_samples is None:
        return "UnderWay"
    if record.lost_samples:
        return "Partial"
    return "Replayed" if record.replayed_samples else "NothingLost"


def speeds(points: tuple[PointFigures, ...]) -> list[float | None]:
    """Samples a second from each point to the next, pauses included; first None, and None across a rollback."""
    return [None, *(_speed(before, after) for before, after in pairwise(points))] if points else []


def _speed(before: PointFigures, after: PointFigures) -> float | None:
    took_s = after.time - before.time
    if took_s <= 0 or after.generation != before.generation:
        return None
    return (after.samples - before.samples) / took_s


# What a page says in words and figures: facts, and tables of failures, the plan, costs and events. Pure.


#: Of what the operator said, the last.
MAX_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Table:
    """One table. note: what to say where it has no rows."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def facts(story: Story) -> tuple[tuple[str, str], ...]:
    """The figures at the head of the page, by name."""
    status = story.status
    progress, budget = status.progress, status.budget
    speed = overall_speed(status) or progress.samples_per_second
    lost = "" if status.lost_row_updates_exact else "at most "
    workers = workers_of(status)
    return (
        ("trained", trained(progress)),
        ("speed", UNKNOWN if speed is None else f"{speed:,.0f} samples/s"),
        ("AUC", _figure(progress.auc)),
        ("log loss", _figure(progress.logloss)),
        *((name, _figure(value)) for name, value in sorted(progress.metrics.items())),
        *_held_out(status),
        ("budget", UNKNOWN if budget is None else f"{budget.spent:.3%} of {budget.limit:.3%} lost"),
        ("rollbacks", UNKNOWN if budget is None else str(budget.rollbacks)),
        ("row updates lost", UNKNOWN if status.lost_row_updates is None else f"{lost}{status.lost_row_updates:,}"),
        ("samples replayed", f"{progress.replayed_samples:,}"),
        ("pods replaced", str(status.restarts)),
        ("workers in each trainer", UNKNOWN if workers is None else str(workers.count)),
    )


def _held_out(status: Status) -> tuple[tuple[str, str], ...]:
    """What evaluations on held-out rows found, where there are any."""
    found, best = status.progress.held_out, status.best
    if found is None:
        return ()
    figures = (
        ("held-out AUC", _figure(found.auc)),
        ("held-out log loss", _figure(found.logloss)),
        ("held-out normalised entropy", _figure(found.normalised_entropy)),
        *((("held-out GAUC", _figure(found.gauc)),) if found.groups else ()),
    )
    if best is None:
        return figures
    place = f"{_figure(best.value)} at {best.anchor.samples:,} samples, {best.since} evaluations ago"
    return (*figures, ("best evaluation", place))


def headline(status: Status) -> str:
    """Why a job failed, or what is being recovered; empty if there is nothing to say."""
    return ended_because(status) or (status.recovery.reason if status.recovery else "")


def tables(story: Story) -> tuple[Table, ...]:
    """All tables, the same for every job."""
    return (
        _failures(story),
        _groups(story),
        _plan(story),
        _overhead(story),
        _conditions(story),
        _members(story),
        _events(story),
    )


def _failures(story: Story) -> Table:
    columns = ("time", "member", "failure", "outcome", "action", "lost", "replayed", "row updates lost", "recovered in")
    rows = tuple(
        (
            clock(each.time),
            f"{each.role}/{each.index}",
            each.kind + (f": {each.message}" if each.message else ""),
            tier(each),
            each.action or UNKNOWN,
            UNKNOWN if each.lost_samples is None else f"{each.lost_samples:,}",
            f"{each.replayed_samples:,}",
            UNKNOWN
            if each.lost_row_updates is None
            else f"{'' if each.lost_row_updates_exact else 'at most '}{each.lost_row_updates:,}",
            took(each.recovery_seconds),
        )
        for each in story.status.failures
    )
    return Table("table-failures", "Failures", columns, rows, "Nothing has failed.")


def _groups(story: Story) -> Table:
    found = story.status.progress.held_out
    groups = () if found is None else (*found.groups, *filter(None, (found.rest,)))
    columns = ("group", "samples", "AUC", "log loss", "normalised entropy", "calibration")
    rows = tuple(
        (
            each.name,
            f"{each.samples:,}",
            *map(_figure, (each.auc, each.logloss, each.normalised_entropy, each.calibration)),
        )
        for each in groups
    )
    return Table("table-groups", "Held-out scores by group", columns, rows, "The job has no spec.evaluation.groupBy.")


def _plan(story: Story) -> Table:
    plan = story.status.plan
    if plan is None:
        return Table("table-plan", "Plan", (), (), "There is no plan yet.")
    rows = (
        ("mode", plan.mode),
        ("interval", duration(plan.interval_seconds)),
        ("why", plan.reason),
        *((name, f"{value:.6g}") for name, value in sorted(plan.inputs.items())),
    )
    return Table("table-plan", "Plan", ("", "now"), rows)


def _overhead(story: Story) -> Table:
    cost = story.status.overhead
    rows = (
        ("saves", f"{cost.save_seconds:.1f} s"),
        ("loading saves", f"{cost.load_seconds:.1f} s"),
        ("training again after rollbacks", f"{cost.lost_seconds:.1f} s"),
        ("waiting for new processes", f"{cost.reschedule_seconds:.1f} s"),
    )
    return Table("table-overhead", "What fault tolerance cost", ("", "so far"), rows)


def _conditions(story: Story) -> Table:
    rows = tuple(
        (each.type, each.status, each.reason, each.message, clock(each.last_transition_time))
        for each in story.status.conditions
    )
    return Table("table-conditions", "Conditions", ("condition", "status", "reason", "message", "since"), rows,
                 "The operator has not seen the job yet.")  # fmt: skip


def _members(story: Story) -> Table:
    rows = tuple(
        (each.name + (" (leads)" if each.role == "trainer" and each.index == story.status.leader else ""), each.state,
         str(each.incarnation), each.pod, each.node)
        for each in story.status.members
    )  # fmt: skip
    return Table(
        "table-members", "Members", ("member", "state", "incarnation", "pod", "node"), rows, "There are no members yet."
    )


def _events(story: Story) -> Table:
    rows = tuple((clock(each.time), each.type, each.reason, each.message) for each in story.said[-MAX_EVENTS:])
    note = "None is kept: Kubernetes keeps events for an hour, and a file has none."
    return Table("table-events", "Events", ("time", "type", "reason", "message"), rows, note)


def clock(seconds: float) -> str:
    """A time to the second, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"
