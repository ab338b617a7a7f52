"""Requests of the benches to the processes that they start, and the responses; and the document of one bench.

A process reads the job's spec from `CPR_SPEC` and a request as JSON from its standard input, and writes one report a
line. The documents have no contract version: both ends are of one installation, on one machine.

`SavingExperiment` and `SavingReport` belong to `cprjob bench priority`; `Counts` and `RedundancyDocument` belong to
`cprjob bench redundancy`; `SnapshotBench` and `BenchReport` belong to `cprjob bench snapshot` (a job with one shard);
`Freshness` and `Holds` belong to `cprjob bench freshness`; `SaveTrials` and `SaveTimes` belong to `cprjob bench scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cpr_contract.choices import Bits, Strategy
from cpr_contract.requests import TrialReport

#: The variable of a member with the name of its file of counts.
COUNTS_FILE = "CPR_BENCH_COUNTS"
#: The users of clicks, by number from 0.
CLICK_USERS = 10_000
#: The variable of a member that selects ECRec's parity.
EAGER = "CPR_BENCH_EAGER"


@dataclass(frozen=True, slots=True)
class Failure:
    """Once the portion `at` of the run is trained, `shards` restore their saved rows; 0 < at <= 1."""

    shards: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Saving:
    """A strategy, its schedule of saves, and the failures of the run. Portions are rounded to whole steps.

    Full saves all changed rows after each `interval` (a portion of the run). Any other strategy does so after `anchors`
    intervals. In between, after each `fraction` of an interval, it saves the rows that it ranks as most important.
    Their number is chosen so that all strategies write equally many rows.
    """

    strategy: Strategy
    interval: float
    anchors: int
    fraction: float
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class SavingTrial:
    """One run over the job's data. `seed` replaces `data.seed` as the seed of the order and the first values.

    saving: the saves and failures; None for a run without failures.
    """

    seed: int
    saving: Saving | None = None


@dataclass(frozen=True, slots=True)
class SavingExperiment:
    """Runs of one job, one after another, with its tables divided into `shards`."""

    shards: int
    trials: tuple[SavingTrial, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """The costs of saves. rows_written: over all saves. row_updates: of the whole run, lost ones included.

    tracker_bytes: memory of all shards' trackers of the strategy.
    """

    rows_written: int
    row_updates: int
    tracker_bytes: int


@dataclass(frozen=True, slots=True)
class SavingReport:
    """The progress of a trial. The last report of a trial with saves has `saved`."""

    report: TrialReport
    saved: Saved | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a member. Its file contains them in this order as int64.

    sent_bytes: in frames to other members, since its start. log_bytes: of pushes that it keeps now. rebuild_cpu_us:
    CPU time of computing its rows from other shards, in microseconds; 0 without a rebuild.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("sent_bytes", "log_bytes", "rebuild_cpu_us")

    sent_bytes: int
    log_bytes: int
    rebuild_cpu_us: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of a shard of one size that was killed with its pod. Medians over the kills.

    seconds_to_next_step: from the kill to the end of the first step after the pause.
    rebuild_gib_s: GiB of the shard's rows and optimizer state per second of its successor's rebuild, with parity from
    other shards, else from the newest save.
    rebuild_gib_per_core_s: the same GiB per second of CPU time of the successor, without that of its neighbours.
    throughput_while_rebuilding: samples per second from that first step until parity covers all shards again, as a
    ratio to those of the 5 s before the kill. Before that step training is paused.
    redundant_again_s: seconds from the kill until parity covers all shards again.
    kills: the number of kills.
    why_null: the reason of each metric that is null.
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

    data_shards: k, the number of shards with a common parity; 0: no parity.
    samples_per_s: without failures.
    throughput_of_none: the same, as a ratio to that of the mode `none`.
    processor_of_none: CPU time of all members per sample, as a ratio to that in `none`. If all processors are busy it
    shows the cost of a mode with less noise than the throughput.
    network_bytes_per_sample: bytes in frames between members, in both directions, lookups and pushes included.
    extra_memory: the bytes of shards' parity and of trainers' kept pushes at the end of a window, as a ratio to those
    of the tables with their optimizer's state; `parity_memory` and `log_memory` are its parts. The log grows with the
    time since the newest save, up to recovery.replay.memory.
    resident_of_none: resident memory of all members beyond that in `none`, as the same ratio; it is noisy.
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
    state. repeats, seconds: the windows of each mode. windows: all windows by mode, as in `cprjob bench train`.
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


@dataclass(frozen=True, slots=True)
class SnapshotBench:
    """The measurements to make. repeats: of each timing and window. window_s: seconds of a window without a save."""

    repeats: int
    window_s: float
    strategies: tuple[Strategy, ...]
    bits: tuple[Bits, ...]


@dataclass(frozen=True, slots=True)
class SaveTrials:
    """Saves of all rows of a shard, each restored and verified. repeats: their number."""

    repeats: int


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one measurement in seconds. `cpu_s`: of this process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """The answer to `SaveTrials`: bytes of rows and optimizer state, and a timing for each repeat."""

    table_bytes: int
    save: tuple[Timing, ...]
    restore: tuple[Timing, ...]
    verify: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """Times of the engine and of the raw client, in direct succession, for the same bytes. `cpu_s`: of this process."""

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
    """Training at a constant pace: the times to a lookup's answer and to a push's acknowledgement, over all steps."""

    steps: int
    lookup: Latency
    push: Latency


@dataclass(frozen=True, slots=True)
class Round:
    """A window without a save, then one from a cut to its commit. `pause_s` is the wait of pushes at the cut."""

    idle: Window
    saving: Window
    pause_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """One save of `rows` rows: its bytes in the store, manifest included, and its duration."""

    strategy: Strategy
    bits: Bits
    rows: int
    size_bytes: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """The results of the measurements.

    table_bytes: rows and optimizer state of the shard. saved_bytes: of the save in `save` and `restore`.
    extra_memory_bytes: the maximum memory of the shard's process for saves, beyond its tables; None if the system does
    not report it. trackers: bytes of each strategy's tracker, in the order of the request.
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
    """The progress of the bench: `done` of `total` measurements. The last report has the `figures`."""

    stage: str
    done: int
    total: int
    figures: SnapshotMetrics | None = None


@dataclass(frozen=True, slots=True)
class Freshness:
    """The number of clicks that were written, and seconds from a click to the changed vector of its id.

    served_s: until a follower has it, for each click that it served. published_s: the part until the entry is written.
    """

    clicks: int
    served_s: tuple[float, ...]
    published_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Holds:
    """How long lookups were held, in seconds: they were blocked, and other threads of their process ran meanwhile.

    rows: of each of two tables. changed: rows of each table in a delta. update_s: duration of each update of the
    follower. updating_s, idle_s: the longest hold of a lookup during each, and in the second before.
    """

    rows: int
    changed: int
    update_s: tuple[float, ...]
    updating_s: tuple[float, ...]
    idle_s: tuple[float, ...]
