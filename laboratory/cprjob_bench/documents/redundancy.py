"""What `cprjob bench redundancy` tells members of a job, reads from them, and prints.

`RedundancyDocument` is what `--json` prints. A figure that a mode cannot have is null, and `why_null` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

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
class ModeFigures:
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
    modes: Mapping[str, ModeFigures]
    windows: Mapping[str, tuple[Mapping[str, object], ...]]
