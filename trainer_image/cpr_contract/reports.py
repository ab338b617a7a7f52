"""Reports of a pod: on `/status`, by its exit code, and in its termination message."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from cpr_contract.choices import SparseUpdates
from cpr_contract.limits import (
    MAX_ANCHORS,
    MAX_COUNTED_TABLES,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_METRICS,
    MAX_RANGES,
    MAX_RESTART_TIMES,
    MAX_SHARDS,
    MAX_TRAINERS,
    AtMost,
    last,
    united,
)
from cpr_contract.manifests import RowUpdates
from cpr_contract.pinned_data import PinnedData, SegmentScores
from cpr_contract.roster import AnchorRef, Counters


class ExitCode(enum.IntEnum):
    """Exit codes of `python -m cpr_trainer`; 128+n is a signal."""

    OK = 0  # finished
    INTERNAL = 1  # an unexpected error: retried within the restart limit
    FLUSHED = 10  # SIGTERM, and everything is saved: nothing is lost
    SUPERSEDED = 11  # a newer incarnation of the same member exists
    STORE_UNREACHABLE = 12  # the store does not answer a request that cannot wait: retried, and not counted
    BAD_SPEC = 20  # the spec cannot be trained: not retried
    BAD_DATA = 21  # the data does not match the spec: not retried
    DAMAGED = 22  # no save on the lineage verifies, the named anchor included: not retried
    CONTRACT = 23  # the image does not support the operator's contract version: not retried
    STORE_UNSUITABLE = 24  # the store lacks a feature that saves need, and the job has not begun: not retried


#: Exit codes after which another attempt would fail, too.
PERMANENT = frozenset(
    {ExitCode.BAD_SPEC, ExitCode.BAD_DATA, ExitCode.DAMAGED, ExitCode.CONTRACT, ExitCode.STORE_UNSUITABLE}
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem for a user to read: `reason` is one CamelCase word, `remedy` is an instruction."""

    reason: str
    message: str
    remedy: str


#: The reason of a trainer's problem if its disk has no space for pushes that exceed the memory for replay.
SPILL_UNAVAILABLE = "SpillUnavailable"
#: The reason of the first leader's problem if columns write the same id in two ways.
IDS_SPELLED_TWICE = "IdsSpelledTwice"


@dataclass(frozen=True, slots=True)
class Deleted:
    """The objects that a successful cleanup deleted. `unreadable` are keys to be kept that it could not read."""

    objects: int
    size_bytes: int
    unreadable: tuple[str, ...] = ()


#: A report has at most half as many as a reader accepts. A writer merges more of them into ranges that cover them.
Ranges = Annotated[tuple[tuple[int, int], ...], AtMost(MAX_RANGES, united, MAX_RANGES // 2)]
Names = Annotated[tuple[str, ...], AtMost(MAX_MEMBERS)]
ByShard = Annotated[tuple[int, ...], AtMost(MAX_SHARDS)]
ByRank = Annotated[tuple[int, ...], AtMost(MAX_TRAINERS)]
#: Seconds, by the number of a process of one incarnation.
ByProcess = Annotated[tuple[tuple[int, float], ...], AtMost(MAX_RESTART_TIMES, last)]
Metrics = Annotated[tuple[tuple[str, float], ...], AtMost(MAX_METRICS)]
#: Pruning follows a commit, so there can be more of them than are kept.
Anchors = Annotated[tuple[AnchorRef, ...], AtMost(2 * MAX_ANCHORS, last)]


class ShardState(enum.StrEnum):
    """The state of a shard."""

    STARTING = "Starting"  # no roster read yet, or no store reached
    SPARE = "Spare"  # a warm standby that no roster assigns a shard yet: its index is -1
    RESTORING = "Restoring"
    BELOW_FLOOR = "BelowFloor"  # the newest save that verifies is older than the floor: serves nothing, waits
    READY = "Ready"  # serves lookups and pushes of its roster's generation
    FLUSHING = "Flushing"  # received SIGTERM: saves all unsaved rows


class TrainerState(enum.StrEnum):
    """The state of a trainer."""

    STARTING = "Starting"
    LOADING = "Loading"  # reads data
    JOINING = "Joining"  # waits for its group, or copies dense state
    BELOW_FLOOR = "BelowFloor"  # no survivor, and the newest dense save is older than the floor
    TRAINING = "Training"
    MEETING = "Meeting"  # stops at the common step that its roster requests, or trains up to it
    PAUSED = "Paused"  # waits for a shard or a peer: `waiting_for` names it
    FINISHING = "Finishing"  # all samples are trained, the final anchor is not committed yet
    FINISHED = "Finished"


@dataclass(frozen=True, slots=True)
class SaveRef:
    """A committed save of one shard, or of the dense state."""

    key: str
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class TableCounts:
    """A dynamic table on one shard.

    `slots` are the rows of its pages, and `entries` those in use. `waiting` are the keys that cells count before their
    admission. Entries and cells are counted every few seconds and after each save.

    The others are sums since the process began. They include steps that it applied again after a rollback. In keys:
    got a slot; lost theirs to a new key; had expired before a new key took their slot; found all of their slots pinned,
    so that their gradient was dropped; and found all of their slots in use, and evicted an entry or were dropped.
    """

    name: str
    slots: int
    entries: int
    waiting: int
    admitted: int
    evicted: int
    expired: int
    dropped: int
    full: int


Tables = Annotated[tuple[TableCounts, ...], AtMost(MAX_COUNTED_TABLES)]


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A shard's answer on `/status`.

    `applied[r]` is the last step applied of rank r, empty while there is no state. `newest_save` is
    the newest save of its lineage that verifies (committed by itself, restored from, or found while
    below the floor); None means step 0. After a restore `restored_samples` are the samples of the
    restored state, and `resumed_samples` is the first sample served again, None before the first
    push. `lost` are all ranges of samples lost on this shard since the generation's anchor,
    according to its lineage: the ledger's source. `silent` names joined trainers without a heartbeat
    for `silence_s`, `overdue` those without one for `overdue_s`.
    `row_updates` are counted since the job began, None while there is no state; after a restore
    their lost part is complete once `resumed_samples` is set. `replayed_samples` were lost with the
    predecessor and pushed again; with replay `resumed_samples` is None until all trainers have
    repeated theirs. `replayed_in_order` is False if the order of the trainers differed from the
    first time. `replay_s` is the time from the first of these pushes to the last; None
    until then, and without replay. `protected_samples` are those in the parity at other shards;
    None without parity, or while it lacks rows. `rebuilt` is True if the rows came from parity
    and not from a save. `lives` counts the processes of this incarnation, `restarts` those of
    them that ended with their container. `in_place_s` has, for each process that ended lately,
    the seconds from its end until the shard served again; the end of a hung process is its last
    iteration. `tables` are the dynamic tables in the order of the model, empty while there is no state.
    """

    contract: int
    job_uid: str
    index: int
    incarnation: int
    counters: Counters
    state: ShardState
    applied: ByRank
    newest_save: SaveRef | None
    restored_samples: int | None
    resumed_samples: int | None
    lost: Ranges
    load_s: float | None
    silent: Names
    problem: Problem | None
    row_updates: RowUpdates | None = None
    replayed_samples: int = 0
    replayed_in_order: bool = True
    overdue: Names = ()
    lives: int = 1
    replay_s: float | None = None
    protected_samples: int | None = None
    rebuilt: bool = False
    in_place_s: ByProcess = ()
    restarts: int = 0
    tables: Tables = ()

    @property
    def applied_step(self) -> int:
        """The last step applied of any rank; 0: none."""
        return max(self.applied, default=0)


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The scores of the samples with the value `name` in the group column; see `HeldOutScores`."""

    name: str
    samples: int
    auc: float | None
    logloss: float | None
    normalised_entropy: float | None
    calibration: float | None


Groups = Annotated[tuple[GroupScores, ...], AtMost(MAX_GROUPS)]


@dataclass(frozen=True, slots=True)
class HeldOutScores:
    """The scores of the model of `step`, after `samples` trained samples, on `scored` samples that are never trained.

    They are of the first label: the area under the ROC curve; the mean log loss in nats; that loss divided by the
    entropy of the labels, so that a constant scores 1; and the sum of the predictions divided by the sum of the labels.
    An undefined score is None, as when all labels are equal. `gauc` is the mean AUC of the groups that have one,
    weighted by their samples. `groups` are the largest ones, and `rest` covers all other samples.
    """

    step: int
    samples: int
    scored: int
    auc: float | None
    logloss: float | None
    normalised_entropy: float | None
    calibration: float | None
    gauc: float | None = None
    groups: Groups = ()
    rest: GroupScores | None = None


@dataclass(frozen=True, slots=True)
class BestEvaluation:
    """The anchor of the best model, its score by the metric of `early_stop`, and the number of evaluations since."""

    anchor: AnchorRef
    value: float
    since: int


#: The header in a request for a leader's report: `Recorded` as JSON, sealed by the job's key
#: (`cpr_contract.roster.seal`). A leader ignores a header with a wrong seal.
RECORDED_HEADER = "X-CPRJob-Recorded"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The part of the leader's reports that the job's status holds. The operator sends it with each request.

    A sent report is not always recorded: the response may be lost, or go to another client than the operator.
    `anchor` is the key of the newest anchor, empty for none; `evaluation` the step of the last evaluation in this
    `generation`, 0 for none.
    """

    generation: int
    anchor: str
    evaluation: int


@dataclass(frozen=True, slots=True)
class RosterNote:
    """An additional field of the leader's roster, in its annotation.

    An operator that did not create the job's key cannot seal a header, and uses this field instead.
    """

    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """A trainer's answer on `/status`. Only the leader sets the fields after `problem`, except those noted below.

    `samples` are complete; `samples_started` is an upper bound of the samples that can have reached
    any shard, running and prefetched steps included. `total_samples` is 0 until the data is read.
    `lost` are the sample ranges missing from the dense state in this generation, because no trainer
    survived and an older dense save was loaded. `shard_saves[i]` are the samples of shard i's last
    committed save, from its acknowledgements, -1 if unknown. `silent` names members ("shard/3",
    "trainer/1") that this trainer cannot connect to, or that sent no heartbeat for `silence_s`;
    `overdue` the same for `overdue_s`. `met` is the anchor of the step at which all trainers
    stopped by request of their roster: it has exactly the steps up to there, of every rank,
    on every shard. `result` is the final anchor. Since this process leads this generation, `saves`
    cuts were committed and `save_stall_s` of training time were lost to saves, stalls and slower
    steps; `commit_s` is the time of the last one from cut to commit. `samples_per_s` is the speed
    between saves, `paused_s` the time that this process waited or was suspended. `sync_gap`
    is the mean number of this trainer's steps between two averages of the dense copies, in
    a shadow mode. `degraded_samples` are those of steps that this process trained without a shard,
    in this generation. `new_files` counts files of data.uri that appeared after the job had begun;
    they are not trained. The leader lists files when it starts and after anchors. With replay,
    every trainer reports `shard_saves`, `shard_incarnations[i]` is the incarnation of shard i that
    sent it (-1 if unknown), and `forgotten[i]` are the samples up to which this trainer cannot
    repeat pushes to shard i; later ones are kept or saved. -1 before its first push.
    `shard_protected[i]` are the samples of shard i in its parity, as last reported; -1 without
    parity. Without lockstep `step` and `samples` count steps that all ranks have completed,
    according to the leader, and `waiting_for` may name trainers without which it trains.
    `auc` and `logloss` are of the first label. `metrics` are named values: "calibration" of a
    single label, or "LABEL.auc", "LABEL.logloss" and "LABEL.calibration" of each of several labels,
    then the network's own. `evaluation` is the last one on held-out samples. With `early_stop`,
    `best` is the best one; the job's model is the one evaluated there. `lives` and `in_place_s` are
    as a shard's; a trainer has resumed when it has completed a step. `workers` is the number of
    workers of this process, set once the data is read, and `workers_reason` its reason.
    `early_save_s` are the seconds of training between the last two cuts, if the last one was early
    because pushes filled the memory for replay. `sparse_updates` are those of the job's spec; images of
    earlier releases do not report them, and have PerPush. `data` is that of a job that follows its data, once it is
    read; `total_samples` are then those of the pins that the trainers have read so far. `segment` is the last complete
    segment of such data.
    """

    contract: int
    job_uid: str
    index: int
    incarnation: int
    counters: Counters
    state: TrainerState
    step: int
    samples: int
    samples_started: int
    total_samples: int
    waiting_for: Names
    silent: Names
    lost: Ranges
    problem: Problem | None
    samples_per_s: float | None = None
    loss: float | None = None
    auc: float | None = None
    logloss: float | None = None
    shard_saves: ByShard = ()
    dense_save: SaveRef | None = None
    anchors: Anchors = ()  # restorable, oldest first, of this generation and its past
    result: AnchorRef | None = None
    met: AnchorRef | None = None
    saves: int = 0
    save_stall_s: float = 0.0
    commit_s: float | None = None
    paused_s: float = 0.0
    sync_gap: float | None = None
    metrics: Metrics = ()
    degraded_samples: int = 0
    new_files: int = 0
    forgotten: ByShard = ()
    overdue: Names = ()
    shard_incarnations: ByShard = ()
    shard_lives: ByShard = ()
    shard_protected: ByShard = ()
    evaluation: HeldOutScores | None = None
    lives: int = 1
    in_place_s: ByProcess = ()
    best: BestEvaluation | None = None
    workers: int | None = None
    workers_reason: str = ""
    early_save_s: float | None = None
    sparse_updates: SparseUpdates = "PerPush"
    data: PinnedData | None = None
    segment: SegmentScores | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The leader's termination message after the last sample: the final anchor, its lost samples, and the scores.

    lost: sample ranges missing from its dense state in this generation, as in a report.
    loss: mean loss of the last steps, in nats unless the network has its own; auc, logloss, metrics: progressive
    validation over all samples that count, as in a report. None if nothing could be scored. evaluation, best: as in
    a report, without the groups. `best` names another anchor unless the last model is the best one. total_samples:
    as in a report, for a job that ends before the operator reads one; 0 from an image that does not state it. voids:
    those of its numbers that are void. segment: as in a report.
    """

    anchor: AnchorRef
    lost: Ranges
    loss: float | None
    auc: float | None
    logloss: float | None
    metrics: Metrics = ()
    evaluation: HeldOutScores | None = None
    best: BestEvaluation | None = None
    total_samples: int = 0
    voids: int = 0
    segment: SegmentScores | None = None
