"""The outcome of a job, for people: its failures, costs and budget, and where its model is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cpr_operator.api.status import BestModel, Condition, FailureRecord, HeldOut, Status

UNKNOWN = "-"


def print_summary(console: Console, job: str, status: Status, samples_per_s: float | None, next_step: str) -> None:
    """Print the outcome of a job; `next_step` says what can be done with it now."""
    console.print(headline(job, status), highlight=False, soft_wrap=True)
    console.print(facts(status, samples_per_s), highlight=False)
    if status.failures:
        console.print("", failures(status.failures), "", sep="\n", highlight=False)
    console.print(next_step, markup=False, highlight=False, soft_wrap=True)


def ended_because(status: Status) -> str:
    """Why the job failed, from its condition; empty if it did not."""
    failed = next((c for c in status.conditions if c.type == "Failed" and c.status == "True"), None)
    return _words(failed) if failed else ""


def headline(job: str, status: Status) -> str:
    """The job's phase, and why it failed if it did."""
    colour = {"Succeeded": "green", "Failed": "red"}.get(status.phase, "yellow")
    reason = ended_because(status)
    return f"[bold]{escape(job)}[/bold]: [{colour}]{status.phase}[/{colour}]" + (
        f" - {escape(reason)}" if reason else ""
    )


def _words(condition: Condition) -> str:
    return f"{condition.reason}: {condition.message}" if condition.message else condition.reason


def facts(status: Status, samples_per_s: float | None) -> Table:
    """What was trained, how well, and what failures and saves have cost."""
    progress, plan, budget = status.progress, status.plan, status.budget
    table = Table.grid(padding=(0, 2))
    speed = f"{_figure(samples_per_s, ',.0f')} samples/s"
    table.add_row("trained", f"{progress.samples:,} of {progress.total_samples:,} samples, {speed}")
    table.add_row("quality", f"AUC {_figure(progress.auc, '.4f')}, log loss {_figure(progress.logloss, '.4f')}")
    if progress.metrics:
        table.add_row("metrics", escape(", ".join(f"{name} {value:.4g}" for name, value in progress.metrics.items())))
    if progress.held_out is not None:
        table.add_row("held out", _held_out(progress.held_out))
    if status.best is not None:
        table.add_row("best", _best(status.best))
    if plan is not None:
        table.add_row("plan", escape(plan.reason))
    if budget is not None:
        lost = f"{budget.spent:.3%} of all samples lost, {budget.limit:.3%} allowed"
        table.add_row("budget", f"{lost}; {budget.rollbacks} rollbacks")
    lost_updates = _at_most(status.lost_row_updates, exact=status.lost_row_updates_exact)
    table.add_row("rows", f"{lost_updates} row updates lost")
    if progress.replayed_samples:
        table.add_row(
            "replayed", f"{progress.replayed_samples:,} samples pushed again to replaced shards, and not lost"
        )
    if progress.degraded_samples:
        table.add_row("degraded", f"{progress.degraded_samples:,} samples trained while a shard was down")
    table.add_row("overhead", _overhead(status))
    return table


def _held_out(found: HeldOut) -> str:
    gauc = "" if found.gauc is None else f"GAUC {found.gauc:.4f}, "
    return (
        f"AUC {_figure(found.auc, '.4f')}, {gauc}log loss {_figure(found.logloss, '.4f')}, normalised entropy "
        f"{_figure(found.normalised_entropy, '.4f')}, calibration {_figure(found.calibration, '.3f')} at step "
        f"{found.step:,}, on {found.scored:,} samples"
    )


def _best(found: BestModel) -> str:
    return f"{found.value:.6g} at step {found.anchor.step:,}, {found.since} evaluations before the last"


def _overhead(status: Status) -> str:
    cost = status.overhead
    return (
        f"saves {cost.save_seconds:.1f} s, loads {cost.load_seconds:.1f} s, "
        f"repeated training {cost.lost_seconds:.1f} s, waiting for new processes {cost.reschedule_seconds:.1f} s"
    )


def failures(records: tuple[FailureRecord, ...]) -> Table:
    """A row for each failure."""
    table = Table(title="Failures", title_justify="left", box=None, pad_edge=False)
    for title in ("member", "failure", "lost samples", "lost row updates", "recovered in", "action"):
        table.add_column(title, header_style="dim")
    for each in records:
        table.add_row(
            f"{each.role}/{each.index}",
            escape(each.kind + (f": {each.message}" if each.message else "")),
            _figure(each.lost_samples, ","),
            _at_most(each.lost_row_updates, exact=each.lost_row_updates_exact),
            UNKNOWN if each.recovery_seconds is None else f"{each.recovery_seconds:.1f} s",
            each.action or UNKNOWN,
        )
    return table


def next_step_here(status: Status, workdir: Path) -> str:
    """What can be done with the job of a local run."""
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


def next_step_there(status: Status, job: str, options: str) -> str:
    """What can be done with a job on a cluster; `options` name the cluster and the namespace."""
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


def _at_most(value: int | None, *, exact: bool) -> str:
    return _figure(value, ",") if exact or value is None else f"at most {value:,}"


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
