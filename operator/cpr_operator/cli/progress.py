"""Live progress: a table that is redrawn on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cli.console import OutputClosedError, SafeConsole, err

# The state of a running job at one moment, as the progress display shows it. Pure.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job's status, and its leader's latest report, which is fresher where it can be asked. Times are seconds."""

    job: str
    elapsed_s: float
    status: Status
    leader: TrainerReport | None

    @property
    def samples(self) -> int:
        """Complete samples."""
        return self.leader.samples if self.leader else self.status.progress.samples

    @property
    def total(self) -> int:
        """Samples in all; 0 until the data is read."""
        return (self.leader.total_samples if self.leader else 0) or self.status.progress.total_samples

    @property
    def samples_per_s(self) -> float | None:
        """Training speed of the last seconds; None while nothing is trained."""
        if self.leader:
            return self.leader.samples_per_s
        return self.status.progress.samples_per_second if self.status.phase == "Running" else None

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve so far."""
        return self.leader.auc if self.leader and self.leader.auc is not None else self.status.progress.auc


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed over a whole run, from its first report to its last."""

    first_s: float
    first_samples: int
    last_s: float
    last_samples: int

    @classmethod
    def begin(cls, now: float, samples: int) -> Pace:
        """The first report."""
        return cls(now, samples, now, samples)

    def after(self, now: float, samples: int) -> Pace:
        """Add a report. One without new samples is ignored, so that it does not lower the speed."""
        if samples <= self.last_samples:
            return self
        return Pace(self.first_s, self.first_samples, now, samples)

    @property
    def samples_per_s(self) -> float | None:
        """The speed; None before anything was trained."""
        elapsed_s = self.last_s - self.first_s
        return (self.last_samples - self.first_samples) / elapsed_s if elapsed_s > 0 else None


#: Seconds between two plain lines.
LINE_EVERY_S = 5.0
#: With more members than this, members are counted by state instead of listed.
MAX_LISTED = 16
GOOD = frozenset({"Ready", "Training", "Finished", "Running", "Finishing", "Succeeded"})


class Progress(Protocol):
    """Shows a job while it runs."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the job's present state. Called several times a second."""
        ...

    def tell(self, text: str) -> None:
        """Print a message about something that happened."""
        ...

    def close(self) -> None:
        """Stop showing, because the run is over."""
        ...


class LiveProgress:
    """For terminals."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        """See `Progress`."""
        self._live.update(frame(snapshot), refresh=True)

    def tell(self, text: str) -> None:
        """See `Progress`."""
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """See `Progress`."""
        self._live.stop()


class PlainProgress:
    """For files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0
        self._phase = ""

    def show(self, snapshot: Snapshot) -> None:
        """See `Progress`."""
        if snapshot.elapsed_s >= self._next_s or snapshot.status.phase != self._phase:
            self._next_s, self._phase = snapshot.elapsed_s + LINE_EVERY_S, snapshot.status.phase
            self.tell(line(snapshot))

    def tell(self, text: str) -> None:
        """See `Progress`."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """See `Progress`."""


class ClosableProgress:
    """Goes on with the standard error once the console cannot be written any more, and calls `on_closed`.

    The pipe of `| head` is closed so, and a terminal whose window is closed. `console` is where to print.
    """

    def __init__(self, console: SafeConsole, on_closed: Callable[[], None]) -> None:
        self.console = console
        self._progress = open_progress(console)
        self._on_closed = on_closed

    def show(self, snapshot: Snapshot) -> None:
        """See `Progress`."""
        self._attempt(lambda progress: progress.show(snapshot))

    def tell(self, text: str) -> None:
        """See `Progress`."""
        self._attempt(lambda progress: progress.tell(text))

    def close(self) -> None:
        """See `Progress`."""
        self._attempt(lambda progress: progress.close())

    def _attempt(self, write: Callable[[Progress], None]) -> None:
        try:
            write(self._progress)
        except (OutputClosedError, OSError):
            self.console.silence()
            self.console, self._progress = err, PlainProgress(err)
            self._progress.tell("The output is closed.")
            self._on_closed()


def open_progress(console: Console) -> Progress:
    """The kind of progress that suits the console."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


def line(snapshot: Snapshot) -> str:
    """The whole state in one line."""
    status = snapshot.status
    parts = [f"{snapshot.elapsed_s:.0f} s", status.phase, *figures(snapshot), *states(status)]
    return "  ".join(parts)


def figures(snapshot: Snapshot) -> list[str]:
    """Samples, speed, AUC, interval and budget. Unknown figures are left out."""
    plan, budget = snapshot.status.plan, snapshot.status.budget
    found = []
    if snapshot.total:
        percent = 100 * snapshot.samples // snapshot.total
        found.append(f"{snapshot.samples:,} of {snapshot.total:,} samples ({percent} %)")
    if snapshot.samples_per_s is not None:
        found.append(f"{snapshot.samples_per_s:,.0f} samples/s")
    if snapshot.status.progress.degraded_samples:
        found.append(f"{snapshot.status.progress.degraded_samples:,} samples trained without a shard")
    if snapshot.auc is not None:
        found.append(f"AUC {snapshot.auc:.4f}")
    if plan is not None:
        found.append(f"saves every {plan.interval_seconds:.3g} s ({plan.mode})")
    if budget is not None:
        found.append(f"spent {budget.spent:.3%} of {budget.limit:.3g}" if budget.spent else "budget untouched")
    return found


def states(status: Status) -> list[str]:
    """Each member with its state, or the number of members in each state if there are many."""
    members: list[tuple[str, str]] = [(f"shard/{s.index}", s.state) for s in status.shards]
    members += [(f"trainer/{t.index}", t.state) for t in status.trainers]
    if len(members) <= MAX_LISTED:
        return [f"{name} {state}" for name, state in members]
    keys = [(name.partition("/")[0], state) for name, state in members]
    return [f"{keys.count(key)} {key[0]}s {key[1]}" for key in dict.fromkeys(keys)]


def frame(snapshot: Snapshot) -> Group:
    """What a terminal shows."""
    status = snapshot.status
    head = Table.grid(padding=(0, 2))
    head.add_row(f"[bold]{escape(snapshot.job)}[/bold]", _coloured(status.phase), f"{snapshot.elapsed_s:.0f} s")
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(snapshot.total, 1), completed=snapshot.samples, width=60))
    return Group(head, bar, Text("   ".join(figures(snapshot))), members(status, most=MAX_LISTED))


def members(status: Status, most: int) -> Table:
    """A row for each of the first `most` shards and trainers."""
    table = Table(box=None, pad_edge=False)
    for title in ("member", "state", "incarnation", "last save (samples)", "reserved"):
        table.add_column(title, header_style="dim")
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
