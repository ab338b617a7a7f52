"""The outcome of a job, as text and as JSON: its progress, failures, costs and budget, and its model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cpr_operator.api.status import DynamicTable, FailureRecord, Goodput, HeldOut, Segment, Status, WorkerCount
from cpr_operator.api.validate import parse_status
from cpr_operator.cli.console import plain_table

UNKNOWN = "-"
#: Fields of a failure that the report has under other names, and those that it leaves to the status.
_FAILURE_KEYS = {"recovery_seconds": "recovery_s", "process": "life"}
_FAILURE_DETAILS = frozenset({"time", "pod", "node", "reason", "exit_code", "counted"})


def overall_speed(status: Status) -> float | None:
    """Return the samples per second from the start of the first pods to the end; None before the end."""
    if status.start_time is None or status.completion_time is None or status.completion_time <= status.start_time:
        return None
    return status.progress.samples / (status.completion_time - status.start_time)


def show_outcome(
    job: Mapping[str, Any], next_step: Callable[[Status, str], str], console: Console, *, as_json: bool
) -> None:
    """Print the outcome of a CPRJob object. Raises InvalidStatusError.

    next_step: returns the command to continue with, from the status and the name of the job.
    """
    name, status = job["metadata"]["name"], parse_status(job.get("status") or {})
    speed = overall_speed(status)
    if as_json:
        console.print_json(json.dumps(report(name, status, speed)))
        return
    print_summary(console, name, status, speed, next_step(status, name))


def report(job: str, status: Status, samples_per_s: float | None) -> dict[str, Any]:
    """Return the job's outcome as plain JSON values; values that were never measured are None.

    `samples_per_s` is the rate over the whole run, recoveries included.
    """
    plan, budget, progress, overhead = status.plan, status.budget, status.progress, status.overhead
    workers = workers_of(status)
    return {
        "job": job,
        "phase": status.phase,
        "samples": progress.samples,
        "data": status.data and status.data.model_dump(mode="json"),
        "samples_per_s": samples_per_s,
        "auc": progress.auc,
        "logloss": progress.logloss,
        "metrics": progress.metrics,
        "segment": progress.segment and progress.segment.model_dump(mode="json"),
        "held_out": progress.held_out and progress.held_out.model_dump(mode="json"),
        "tables": [table.model_dump() for table in status.tables],
        "best": status.best and status.best.model_dump(mode="json"),
        "plan": plan and {"mode": plan.mode, "interval_s": plan.interval_seconds, "reason": plan.reason},
        "budget": budget and budget.model_dump(include={"limit", "spent", "running_sum", "rollbacks"}),
        "workers": workers and workers.model_dump(),
        "replayed_samples": status.progress.replayed_samples,
        "protected_samples": status.progress.protected_samples,
        "lost_row_updates": status.lost_row_updates,
        "lost_row_updates_exact": status.lost_row_updates_exact,
        "failures": [
            {_FAILURE_KEYS.get(name, name): value for name, value in each if name not in _FAILURE_DETAILS}
            for each in status.failures
        ],
        "pods": [
            {"name": each.pod, "role": each.role, **each.model_dump(include={"index", "incarnation", "uid"})}
            for each in status.members
        ],
        "goodput": status.goodput and _times(status.goodput),
        "overhead": {name.replace("_seconds", "_s"): value for name, value in overhead},
        "result": status.result and status.result.key,
    }


def print_summary(console: Console, job: str, status: Status, samples_per_s: float | None, next_step: str) -> None:
    """Print the outcome of a job, and then `next_step`."""
    console.print(headline(job, status), highlight=False, soft_wrap=True)
    console.print(facts(status, samples_per_s), highlight=False)
    if status.tables:
        console.print("", dynamic_tables(status.tables), sep="\n", highlight=False)
    if status.failures:
        console.print("", failures(status.failures), sep="\n", highlight=False)
    if status.tables or status.failures:
        console.print()
    console.print(next_step, markup=False, highlight=False, soft_wrap=True)


def failure_reason(status: Status) -> str:
    """Return why the job failed, from its condition; empty if it did not."""
    failed = next((c for c in status.conditions if c.type == "Failed" and c.status == "True"), None)
    if failed is None:
        return ""
    return f"{failed.reason}: {failed.message}" if failed.message else failed.reason


def headline(job: str, status: Status) -> str:
    """Return the job's phase, and why it failed if it did."""
    colour = {"Succeeded": "green", "Failed": "red"}.get(status.phase, "yellow")
    reason = failure_reason(status)
    return f"[bold]{escape(job)}[/bold]: [{colour}]{status.phase}[/{colour}]" + (
        f" - {escape(reason)}" if reason else ""
    )


def workers_of(status: Status) -> WorkerCount | None:
    """Return the number of workers of each trainer, or None while it is unknown."""
    workers = None if status.runtime is None else status.runtime.workers
    return None if workers is None or workers.count is None else workers


def trained(status: Status) -> str:
    """Return the number of trained samples, and the total if it is known: a job may end before its data is read.

    Data that arrives has a lag instead, until it has ended.
    """
    progress, data = status.progress, status.data
    if data is not None and not data.ended:
        return f"{progress.samples:,} samples, {data.lag_samples:,} pinned ones to go"
    total = f" of {progress.total_samples:,}" if progress.total_samples else ""
    return f"{progress.samples:,}{total} samples"


def facts(status: Status, samples_per_s: float | None) -> Table:
    """Return a table of progress, quality, and costs of failures and saves."""
    progress, plan, budget = status.progress, status.plan, status.budget
    table = Table.grid(padding=(0, 2))
    speed = f"{_number(samples_per_s, ',.0f')} samples/s"
    table.add_row("trained", f"{trained(status)}, {speed}")
    table.add_row("quality", f"AUC {_number(progress.auc, '.4f')}, log loss {_number(progress.logloss, '.4f')}")
    if status.data is not None:
        late = f", {status.data.late_files:,} files came late" if status.data.late_files else ""
        table.add_row("data", f"{status.data.pinned_samples:,} samples in {status.data.pins:,} pins{late}")
    if progress.metrics:
        table.add_row("metrics", escape(", ".join(f"{name} {value:.4g}" for name, value in progress.metrics.items())))
    if progress.segment is not None:
        table.add_row("segment", _segment(progress.segment))
    if progress.held_out is not None:
        table.add_row("held out", _held_out(progress.held_out))
    if status.best is not None:
        best = status.best
        when = f"at step {best.anchor.step:,}, {best.since} evaluations before the last"
        table.add_row("best", f"{best.value:.6g} {when}")
    if plan is not None:
        table.add_row("plan", escape(plan.reason))
    if (workers := workers_of(status)) is not None:
        table.add_row("workers", escape(f"{workers.count} in each trainer: {workers.reason}"))
    if budget is not None:
        lost = f"{budget.spent:.3%} of all samples lost, {budget.limit:.3%} allowed"
        table.add_row("budget", f"{lost}; {budget.rollbacks} rollbacks")
    lost_updates = at_most(status.lost_row_updates, exact=status.lost_row_updates_exact)
    table.add_row("rows", f"{lost_updates} row updates lost")
    for name, text in _costs(status):
        table.add_row(name, text)
    return table


def _costs(status: Status) -> Iterator[tuple[str, str]]:
    """Yield the rows of the samples and the time that failures and saves cost."""
    progress, cost = status.progress, status.overhead
    if progress.replayed_samples:
        yield "replayed", f"{progress.replayed_samples:,} samples pushed again to replaced shards, and not lost"
    if progress.degraded_samples:
        yield "degraded", f"{progress.degraded_samples:,} samples trained while a shard was down"
    if status.goodput is not None:
        yield "goodput", goodput_text(status.goodput)
    saves = f"saves {cost.save_seconds:.1f} s, loads {cost.load_seconds:.1f} s"
    waits = f"waiting for new processes {cost.reschedule_seconds:.1f} s"
    yield "overhead", f"{saves}, repeated training {cost.lost_seconds:.1f} s, {waits}"


def _times(goodput: Goodput) -> dict[str, Any]:
    wall_s, productive_s = goodput.wall_seconds, goodput.productive_seconds
    return {"ratio": goodput.ratio, "wall_s": wall_s, "productive_s": productive_s, "lost_s": dict(goodput.lost)}


def goodput_text(goodput: Goodput) -> str:
    """Return the part of the time that was productive, and the lost times, the longest first."""
    shown = UNKNOWN if goodput.ratio is None else f"{goodput.ratio:.1%}"
    longest = sorted(goodput.lost, key=lambda part: -part[1])
    lost = ", ".join(f"{cause_text(cause)} {duration_text(seconds)}" for cause, seconds in longest if seconds)
    return f"{shown} of {duration_text(goodput.wall_seconds)}" + (f"; {lost}" if lost else "")


def cause_text(cause: str) -> str:
    """Return the cause of lost time, in words."""
    return cause.replace("_", " ")


def _held_out(found: HeldOut) -> str:
    gauc = "" if found.gauc is None else f"GAUC {found.gauc:.4f}, "
    return f"{_scores(found, gauc)} at step {found.step:,}, on {found.scored:,} samples"


def _segment(found: Segment) -> str:
    return f"{_scores(found)} up to pin {found.pin:,}, on {found.scored:,} samples before they were trained"


def _scores(found: HeldOut | Segment, gauc: str = "") -> str:
    return (
        f"AUC {_number(found.auc, '.4f')}, {gauc}log loss {_number(found.logloss, '.4f')}, normalised entropy "
        f"{_number(found.normalised_entropy, '.4f')}, calibration {_number(found.calibration, '.3f')}"
    )


def failures(records: tuple[FailureRecord, ...]) -> Table:
    """Return a table with a row for each failure."""
    columns = ("member", "failure", "lost samples", "lost row updates", "recovered in", "action")
    table = plain_table(*columns, title="Failures")
    for each in records:
        table.add_row(
            f"{each.role}/{each.index}",
            escape(each.kind + (f": {each.message}" if each.message else "")),
            _number(each.lost_samples, ","),
            at_most(each.lost_row_updates, exact=each.lost_row_updates_exact),
            duration_text(each.recovery_seconds),
            each.action or UNKNOWN,
        )
    return table


def dynamic_tables(tables: tuple[DynamicTable, ...]) -> Table:
    """Return a table with a row for each dynamic table."""
    columns = ("table", "rows", "in use", "waiting", "admitted", "evicted", "expired", "dropped gradients")
    shown = plain_table(*columns, title="Dynamic tables")
    for each in tables:
        counts = (each.waiting, each.admitted, each.evicted, each.expired, each.dropped)
        in_use = f"{each.entries:,} ({each.occupancy_percent} %)"
        shown.add_row(escape(each.name), f"{each.capacity:,}", in_use, *(f"{count:,}" for count in counts))
    return shown


def clock(seconds: float) -> str:
    """Return a time to the second, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def duration_text(seconds: float | None) -> str:
    """Return a duration to a tenth of a second, or to a hundredth below one second."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


def next_local_step(status: Status, workdir: Path) -> str:
    """Return the command to continue with after a local run."""
    match status.phase:
        case "Succeeded" if status.result is not None:
            return (
                f"The model is anchor {status.result.key} in {workdir}.\n"
                f"To write it as files: cprjob export --workdir {workdir} --to model"
            )
        case "Failed":
            return f"Logs of all processes: {workdir}/pods/*/log.txt"
        case _:
            return f"To resume the job: cprjob run --resume --workdir {workdir}"


def next_step_of_stored(written_s: float) -> str:
    """Return the time of a job's record, and the command for its processes."""
    return (
        f"This is the state of {clock(written_s)} UTC, as the store has it.\n"
        "The last outputs of its processes: cprjob logs with the same store, and --previous or --incarnation N"
    )


def next_step_on_cluster(status: Status, job: str, options: str) -> str:
    """Return the command to continue with for a job on a cluster. `options` name the cluster and the namespace."""
    match status.phase:
        case "Succeeded" if status.result is not None:
            return (
                f"The model is anchor {status.result.key} in the job's store.\n"
                f"To write it as files: cprjob export cpr/{job} --to model{options}"
            )
        case "Failed":
            return f"To see its log: cprjob logs {job}{options}"
        case "Suspended":
            return f"To resume the job: cprjob resume {job}{options}"
        case _:
            return f"To follow the job: cprjob top {job}{options}"


def at_most(value: int | None, *, exact: bool) -> str:
    """Return a number of lost updates, or a bound of it if it is not `exact`."""
    return _number(value, ",") if exact or value is None else f"at most {value:,}"


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
