"""What the commands of benches ask the processes that they start, and are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cpr_contract.choices import Bits, Strategy
from cpr_contract.requests import TrialReport

# What `cprjob bench priority` asks `python -m cprjob_bench priority` to try, and is told.
#
# Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
# `CPR_SPEC`, a `SavingExperiment` as JSON on the standard input; the answer is one `SavingReport` a line.


@dataclass(frozen=True, slots=True)
class Failure:
    """Once the portion `at` of the run is trained, `shards` go back to what is saved of them; 0 < at <= 1."""

    shards: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Saving:
    """Which rows are saved when, and the failures that show what that is worth. Portions are rounded to whole steps.

    Full saves all rows that changed, once in every `interval` (a portion of the run). Any other strategy does so once
    in `anchors` intervals, and between that, every `fraction` of an interval, saves the rows that it holds for the most
    important: so many of them that as many rows are written in all as with Full.
    """

    strategy: Strategy
    interval: float
    anchors: int
    fraction: float
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class SavingTrial:
    """One run over the job's data. `seed` stands in for `data.seed` as the seed of the order and the first values.

    saving: what is saved, and what is lost in spite of it; None for a run without failures.
    """

    seed: int
    saving: Saving | None = None


@dataclass(frozen=True, slots=True)
class SavingExperiment:
    """Runs of one job, one after another, its tables divided into `shards`."""

    shards: int
    trials: tuple[SavingTrial, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """What saving took. rows_written: over all saves. row_updates: of the whole run, lost ones included.

    tracker_bytes: memory of all shards' trackers of the strategy.
    """

    rows_written: int
    row_updates: int
    tracker_bytes: int


@dataclass(frozen=True, slots=True)
class SavingReport:
    """Where a trial stands. `saved` comes with the outcome of one that saves."""

    report: TrialReport
    saved: Saved | None = None


# What `cprjob bench redundancy` tells members of a job, reads from them, and prints.
#
# `RedundancyDocument` is what `--json` prints. A figure that a mode cannot have is null, and `why_null` says why.


#: A variable of a member: it counts in this file.
COUNTS_FILE = "CPR_BENCH_COUNTS"
#: A variable of a member, if it is set: parity as ECRec keeps it.
EAGER = "CPR_BENCH_EAGER"


@dataclass(frozen=True, slots=True)
class Counts:
    """What a member has counted; its file has these as int64, one after the other.

    sent_bytes: in frames to other members, since its start. log_bytes: of pushes that it keeps now. rebuild_cpu_us:
    microseconds of the processor in which its thread computed its rows from other shards; 0: it did not.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("sent_bytes", "log_bytes", "rebuild_cpu_us")

    sent_bytes: int
    log_bytes: int
    rebuild_cpu_us: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """A shard of some size was killed with its pod. Medians over the kills.

    seconds_to_next_step: from the kill to the end of the first step after the pause.
    rebuild_gib_s: GiB of the shard's rows and optimizer state, by the seconds in which its successor got them: from
    other shards with parity, else from the newest save.
    rebuild_gib_per_core_s: the same GiB, by the seconds of a processor that the successor needed: whatever else the
    machine had to do, and without what its neighbours needed to answer.
    throughput_while_rebuilding: samples per second from that first step until parity holds all shards again, as a ratio
    to those of the 5 s before the kill. Before that step training stands still.
    redundant_again_s: seconds from the kill until parity holds all shards again.
    kills: how many there were.
    why_null: for each figure that is null, the reason.
    """

    seconds_to_next_step: float | None
    rebuild_gib_s: float | None
    rebuild_gib_per_core_s: float | None
    throughput_while_rebuilding: float | None
    redundant_again_s: float | None
    kills: int
    why_null: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModeMetrics:
    """One mode. Medians over the windows; ratios are those of windows of the same repeat.

    data_shards: k, the shards that have a common parity; 0: there is none.
    samples_per_s: while nothing fails.
    throughput_of_none: the same, as a ratio to that of the mode `none`.
    processor_of_none: processor time of all members per sample, as a ratio to that in `none`. Where all processors are
    busy it says what a mode costs with less noise than the throughput.
    network_bytes_per_sample: bytes in frames between members, in both directions, lookups and pushes included.
    extra_memory: the parity that shards keep and the pushes that trainers keep at the end of a window, in bytes, as a
    ratio to those of the tables with their optimizer's state; `parity_memory` and `log_memory` are its parts. The log
    grows with the time since the newest save, up to recovery.replay.memory.
    resident_of_none: resident memory of all members beyond that in `none`, as the same ratio; measured, and so noisy.
    recovery: by the MiB of the killed shard.
    """

    data_shards: int
    samples_per_s: float
    throughput_of_none: float
    processor_of_none: float
    network_bytes_per_sample: float
    extra_memory: float
    parity_memory: float
    log_memory: float
    resident_of_none: float
    recovery: Mapping[str, Recovery]


@dataclass(frozen=True, slots=True)
class RedundancyDocument:
    """The result of the bench.

    preset, rows, batch_size, trainers, shards: the job of the windows. table_mib: its tables with their optimizer's
    state. repeats, seconds: the windows of each mode. windows: each of them, by mode, as `cprjob bench train` has them.
    """

    preset: str
    rows: int
    batch_size: int
    trainers: int
    shards: int
    table_mib: float
    repeats: int
    seconds: int
    modes: Mapping[str, ModeMetrics]
    windows: Mapping[str, tuple[Mapping[str, object], ...]]


# What `cprjob bench snapshot` asks `python -m cprjob_bench snapshot` to measure, and is told.
#
# Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
# `CPR_SPEC`: it names the one shard, the store and the limit on saves. A `SnapshotBench` comes as JSON on the standard
# input; the answer is one `BenchReport` a line.


@dataclass(frozen=True, slots=True)
class SnapshotBench:
    """What to measure. repeats: of every contest and window. window_s: how long a window without a save is."""

    repeats: int
    window_s: float
    strategies: tuple[Strategy, ...]
    bits: tuple[Bits, ...]


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """The engine and the raw client, one right after the other, with the same bytes. `cpu_s` is of this process."""

    wall_s: float
    cpu_s: float
    raw_wall_s: float
    raw_cpu_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the time that a trainer waits, in ms."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Window:
    """Training at an even pace for some time: a lookup's answer and a push's acknowledgement, over all steps."""

    steps: int
    lookup: Latency
    push: Latency


@dataclass(frozen=True, slots=True)
class Round:
    """A window without a save, then one from a cut to its commit. `pause_s` is what the cut kept pushes waiting."""

    idle: Window
    saving: Window
    pause_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """One save of `rows` rows: the bytes it takes in the store, its manifest included, and how long it took."""

    strategy: Strategy
    bits: Bits
    rows: int
    size_bytes: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """What was measured.

    table_bytes: rows and optimizer state of the shard. saved_bytes: of the save that `save` and `restore` are about.
    extra_memory_bytes: the most that the shard's process took for saving, beyond its tables; None where the system does
    not tell. trackers: bytes that each strategy takes, in the order of the request.
    """

    table_bytes: int
    saved_bytes: int
    save: tuple[PairedTiming, ...]
    restore: tuple[PairedTiming, ...]
    rounds: tuple[Round, ...]
    extra_memory_bytes: int | None
    trackers: tuple[int, ...]
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """How far the bench is: `done` of `total` measurements. `figures` come with the last report."""

    stage: str
    done: int
    total: int
    figures: SnapshotMetrics | None = None
