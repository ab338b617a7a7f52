"""Shows the progress of a job: a table that is redrawn on a terminal, or else a line every few seconds."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cli.console import OutputClosedError, SafeConsole, err, plain_table

#: Seconds between two plain lines.
LINE_EVERY_S = 5.0
#: With more members than this, members are counted by state instead of listed.
MAX_LISTED = 16
GOOD = frozenset({"Ready", "Training", "Finished", "Running", "Finishing", "Succeeded"})


@dataclass(frozen=True, slots=True)
class ProgressState:
    """The status of a job, and the latest report of its leader, which is fresher. A job on a cluster has no report."""

    job: str
    elapsed_s: float
    status: Status
    leader: TrainerReport | None

    @property
    def samples(self) -> int:
        """Return the number of complete samples."""
        return self.leader.samples if self.leader else self.status.progress.samples

    @property
    def total(self) -> int:
        """Return the number of samples to train; 0 until the data is read."""
        return (self.leader.total_samples if self.leader else 0) or self.status.progress.total_samples

    @property
    def lag(self) -> int | None:
        """Return the pinned samples to train of data that has no end yet; None if the total is that of the job."""
        if self.leader is not None and (reported := self.leader.data) is not None:
            return None if reported.ended else reported.lag(self.samples)
        data = self.status.data
        return None if data is None or data.ended else data.lag_samples

    @property
    def samples_per_s(self) -> float | None:
        """Return the training speed of the last seconds; None while nothing is trained."""
        if self.leader:
            return self.leader.samples_per_s
        return self.status.progress.samples_per_second if self.status.phase == "Running" else None

    @property
    def auc(self) -> float | None:
        """Return the area under the ROC curve so far."""
        return self.leader.auc if self.leader and self.leader.auc is not None else self.status.progress.auc


class Throughput:
    """The average speed of a run, from its first report to the last one with new samples."""

    def __init__(self) -> None:
        self._reports: list[tuple[float, int]] = []

    def add(self, now: float, samples: int) -> None:
        """Add a report. One without new samples is ignored."""
        if not self._reports or samples > self._reports[-1][1]:
            self._reports[1:] = [(now, samples)]

    @property
    def samples_per_s(self) -> float | None:
        """Return the speed; None before anything was trained."""
        if len(self._reports) < 2:  # noqa: PLR2004 -- the first and the last
            return None
        (first_s, first), (last_s, last) = self._reports
        return (last - first) / (last_s - first_s) if last_s > first_s else None


class LiveProgress:
    """A display of a job that runs: a table on a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._is_terminal = console.is_terminal

    def show(self, state: ProgressState) -> None:
        """Redraw the table. Raises OSError if the terminal is closed."""
        if self._is_terminal and not self._live.console.is_terminal:  # rich would draw nothing more until the end
            raise OSError(errno.EIO, "the terminal is closed")
        self._live.update(frame(state), refresh=True)

    def print(self, text: str) -> None:
        """Print a message above the table, such as an event."""
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()


class PlainProgress:
    """A display of a job that runs: lines in a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0
        self._phase = ""

    def show(self, state: ProgressState) -> None:
        """Print the state if it is due, or if the phase has changed."""
        if state.elapsed_s >= self._next_s or state.status.phase != self._phase:
            self._next_s, self._phase = state.elapsed_s + LINE_EVERY_S, state.status.phase
            self.print(line(state))

    def print(self, text: str) -> None:
        """Print a message, such as an event."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is left to do."""


Progress = LiveProgress | PlainProgress


class ClosableProgress:
    """A display that switches to the standard error if the console is closed, and then calls `on_closed`.

    A console is closed when `| head` ends, or with the window of a terminal. `console` is the one in use.
    """

    def __init__(self, console: SafeConsole, on_closed: Callable[[], None]) -> None:
        self.console = console
        self._progress = open_progress(console)
        self._on_closed = on_closed

    def show(self, state: ProgressState) -> None:
        """Show the present state of the job."""
        self._attempt(lambda progress: progress.show(state))

    def print(self, text: str) -> None:
        """Print a message, such as an event."""
        self._attempt(lambda progress: progress.print(text))

    def close(self) -> None:
        """End the display."""
        self._attempt(lambda progress: progress.close())

    def _attempt(self, write: Callable[[Progress], None]) -> None:
        try:
            write(self._progress)
        except (OutputClosedError, OSError):
            self.console.discard_output()
            self.console, self._progress = err, PlainProgress(err)
            self._progress.print("The output is closed.")
            self._on_closed()


def open_progress(console: Console) -> Progress:
    """Return a display for the console."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


def line(state: ProgressState) -> str:
    """Return the whole state in one line."""
    return "  ".join([f"{state.elapsed_s:.0f} s", state.status.phase, *metrics(state), *states(state.status)])


def metrics(state: ProgressState) -> list[str]:
    """Return samples, speed, AUC, interval and budget, as far as they are known."""
    plan, budget = state.status.plan, state.status.budget
    found = []
    if state.lag is not None:
        found.append(f"{state.samples:,} samples, {f'{state.lag:,} to go' if state.lag else 'caught up'}")
    elif state.total:
        percent = 100 * state.samples // state.total
        found.append(f"{state.samples:,} of {state.total:,} samples ({percent} %)")
    if state.samples_per_s is not None:
        found.append(f"{state.samples_per_s:,.0f} samples/s")
    if state.status.progress.degraded_samples:
        found.append(f"{state.status.progress.degraded_samples:,} samples trained without a shard")
    if state.auc is not None:
        found.append(f"AUC {state.auc:.4f}")
    if plan is not None:
        found.append(f"saves every {plan.interval_seconds:.3g} s ({plan.mode})")
    if budget is not None:
        found.append(f"spent {budget.spent:.3%} of {budget.limit:.3g}" if budget.spent else "budget untouched")
    return found


def states(status: Status) -> list[str]:
    """Return each member with its state, or with many members the number in each state."""
    if len(status.members) <= MAX_LISTED:
        return [f"{member.name} {member.state}" for member in status.members]
    keys = [(member.role, member.state) for member in status.members]
    return [f"{keys.count(key)} {key[0]}s {key[1]}" for key in dict.fromkeys(keys)]


def frame(state: ProgressState) -> Group:
    """Return the display of a terminal."""
    status = state.status
    head = Table.grid(padding=(0, 2))
    head.add_row(f"[bold]{escape(state.job)}[/bold]", _coloured(status.phase), f"{state.elapsed_s:.0f} s")
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(state.total, 1), completed=state.samples, width=60))
    return Group(head, bar, Text("   ".join(metrics(state))), members(status, most=MAX_LISTED))


def members(status: Status, most: int) -> Table:
    """Return a table with a row for each of the first `most` shards and trainers."""
    table = plain_table("member", "state", "incarnation", "last save (samples)", "reserved")
    for shard in status.shards[:most]:
        reserved = sum(end - first for first, end in shard.reserved)
        _row(table, f"shard/{shard.index}", shard, shard.saved_samples, reserved)
    for trainer in status.trainers[:most]:
        leads = " (leads)" if trainer.index == status.leader else ""
        _row(table, f"trainer/{trainer.index}{leads}", trainer, status.dense.saved_samples, 0)
    return table


def _row(table: Table, name: str, member: Shard | Trainer, saved: int, reserved: int) -> None:
    cells = (f"{saved:,}", f"{reserved:,}" if reserved else "")
    table.add_row(name, _coloured(member.state), str(member.incarnation), *cells)


def _coloured(state: str) -> str:
    colour = "green" if state in GOOD else "red" if state in {"Lost", "Failed", "BelowFloor"} else "yellow"
    return f"[{colour}]{state}[/{colour}]"
