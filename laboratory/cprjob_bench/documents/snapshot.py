"""What `cprjob bench snapshot` asks `python -m cprjob_bench snapshot` to measure, and is told.

Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
`CPR_SPEC`: it names the one shard, the store and the limit on saves. A `SnapshotBench` comes as JSON on the standard
input; the answer is one `BenchReport` a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.spec import Bits, Strategy


@dataclass(frozen=True, slots=True)
class SnapshotBench:
    """What to measure. repeats: of every contest and window. window_s: how long a window without a save is."""

    repeats: int
    window_s: float
    strategies: tuple[Strategy, ...]
    bits: tuple[Bits, ...]


@dataclass(frozen=True, slots=True)
class Contest:
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
class Figures:
    """What was measured.

    table_bytes: rows and optimizer state of the shard. saved_bytes: of the save that `save` and `restore` are about.
    extra_memory_bytes: the most that the shard's process took for saving, beyond its tables; None where the system does
    not tell. trackers: bytes that each strategy takes, in the order of the request.
    """

    table_bytes: int
    saved_bytes: int
    save: tuple[Contest, ...]
    restore: tuple[Contest, ...]
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
    figures: Figures | None = None
