"""What a pod tells: its report on `/status`, its exit code, and its termination message."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from cpr_contract.limits import (
    MAX_ANCHORS,
    MAX_GROUPS,
    MAX_LIVES,
    MAX_MEMBERS,
    MAX_METRICS,
    MAX_RANGES,
    MAX_SHARDS,
    MAX_TRAINERS,
    AtMost,
    last,
    united,
)
from cpr_contract.manifests import RowUpdates
from cpr_contract.roster import AnchorRef, Counters

# How a pod's process ends: exit codes, and what it leaves in its termination file.


class ExitCode(enum.IntEnum):
    """Exit codes of `python -m cpr_trainer`; 128+n is a signal, as everywhere."""

    OK = 0  # finished
    INTERNAL = 1  # an error nobody foresaw: retried within the restart limit
    FLUSHED = 10  # SIGTERM, and everything is saved: nothing is lost
    SUPERSEDED = 11  # a newer incarnation of the same member exists: stepped aside
    STORE_UNREACHABLE = 12  # the store does not answer, where nothing could wait for it: retried, and not counted
    BAD_SPEC = 20  # the spec cannot be trained: not retried
    BAD_DATA = 21  # the data is not what the spec says: not retried
    DAMAGED = 22  # nothing on the lineage verifies, the named anchor included: not retried
    CONTRACT = 23  # the operator speaks a contract version this image does not: not retried


#: Exit codes after which another attempt would end the same way.
PERMANENT = frozenset({ExitCode.BAD_SPEC, ExitCode.BAD_DATA, ExitCode.DAMAGED, ExitCode.CONTRACT})


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, for people: `reason` is one CamelCase word, `remedy` says what to do."""

    reason: str
    message: str
    remedy: str


#: The reason by which a trainer says that there is no room on its disk for the pushes that memory has none for.
SPILL_UNAVAILABLE = "SpillUnavailable"
#: The reason by which the first leader reports columns that write the same id in two ways.
IDS_SPELLED_TWICE = "IdsSpelledTwice"


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a cleanup that ended well has deleted. `unreadable` are keys it should have spared and could not read."""

    objects: int
    size_bytes: int
    unreadable: tuple[str, ...] = ()


#: A report has room for half as many as a reader takes. More of them become fewer that hold at least as much.
Ranges = Annotated[tuple[tuple[int, int], ...], AtMost(MAX_RANGES, united, MAX_RANGES // 2)]
Names = Annotated[tuple[str, ...], AtMost(MAX_MEMBERS)]
ByShard = Annotated[tuple[int, ...], AtMost(MAX_SHARDS)]
ByRank = Annotated[tuple[int, ...], AtMost(MAX_TRAINERS)]
#: Seconds, by the number of a life.
ByLife = Annotated[tuple[tuple[int, float], ...], AtMost(MAX_LIVES, last)]
Metrics = Annotated[tuple[tuple[str, float], ...], AtMost(MAX_METRICS)]
#: Pruning comes after a commit, so for a while there are more than are kept.
Anchors = Annotated[tuple[AnchorRef, ...], AtMost(2 * MAX_ANCHORS, last)]


class ShardState(enum.StrEnum):
    """Where a shard stands."""

    STARTING = "Starting"  # no roster read yet, or no store reached
    SPARE = "Spare"  # no roster names it yet, and all that can be done before one does is done: its index is -1
    RESTORING = "Restoring"
    BELOW_FLOOR = "BelowFloor"  # the newest save that verifies is older than the floor: serves nothing, waits
    READY = "Ready"  # serves lookups and pushes of its roster's generation
    FLUSHING = "Flushing"  # SIGTERM came: saving what is left


class TrainerState(enum.StrEnum):
    """Where a trainer stands."""

    STARTING = "Starting"
    LOADING = "Loading"  # reads data
    JOINING = "Joining"  # waits for its group, or copies dense state
    BELOW_FLOOR = "BelowFloor"  # no survivor, and the newest dense save is older than the floor
    TRAINING = "Training"
    MEETING = "Meeting"  # its roster asks all to meet: it stands, on its way or there
    PAUSED = "Paused"  # waits for a shard or a peer: `waiting_for` names it
    FINISHING = "Finishing"  # all samples trained, the final anchor is being committed
    FINISHED = "Finished"


@dataclass(frozen=True, slots=True)
class SaveRef:
    """A committed save of one shard, or of the dense state."""

    key: str
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A shard's answer on `/status`.

    `applied[r]` is the last step applied of rank r, empty while there is no state. `newest_save` is
    the newest save of its lineage that verifies (committed by itself, restored from, or found while
    below the floor); None means step 0. After a restore `restored_samples` is where the restored
    state stands and `resumed_samples` the first sample served again, None until a push came. `lost`
    are all ranges of samples lost on this shard since the generation's anchor, as far as its
    lineage knows: the ledger's source. `silent` names trainers that joined and whose heartbeat is
    missing for `silence_s`, and `overdue` those of whom it is missing for `overdue_s`.
    `row_updates` are counted since the job began, None while there is no state; after a restore
    what is lost of them is known once `resumed_samples` is. `replayed_samples` went with the
    predecessor and trainers pushed them again; with replay `resumed_samples` is None until all of
    them have. They were applied as before if `replayed_in_order`, else in another order of the
    trainers. `replay_s` is how long that took, from the first of these pushes to the last; None
    until then, and without replay. `protected_samples` are those that parity at other shards holds;
    None while it does not hold all rows, or there is none. `rebuilt` says that the rows came from
    there, and not from a save. `lives` counts the processes of this incarnation, `restarts` those of
    them that ended with their container, and `in_place_s` has for each of those that ended lately
    how long after its end the shard served again; one that hung has ended when it did its last turn.
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
    in_place_s: ByLife = ()
    restarts: int = 0

    @property
    def applied_step(self) -> int:
        """The last step applied of any rank; 0: none."""
        return max(self.applied, default=0)


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The scores of the samples that have one value, `name`, of the group column; see `HeldOutScores`."""

    name: str
    samples: int
    auc: float | None
    logloss: float | None
    normalised_entropy: float | None
    calibration: float | None


Groups = Annotated[tuple[GroupScores, ...], AtMost(MAX_GROUPS)]


@dataclass(frozen=True, slots=True)
class HeldOutScores:
    """How well the model of `step`, and of so many trained `samples`, did on `scored` samples that are never trained.

    All of the first label: the area under the ROC curve; the mean log loss in nats; that loss by the entropy of the
    labels, so that 1 is what a constant scores; and the sum of the predictions by the sum of the labels. None where it
    is not defined, as when all labels are the same. `gauc` is the mean AUC of the groups that have one, weighted by
    their samples. `groups` are the largest ones, and `rest` is of all samples of the others together.
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
    """The anchor of the best model, what it scored by the metric of `early_stop`, and how many were scored since."""

    anchor: AnchorRef
    value: float
    since: int


#: The header of a request for a leader's report in which the operator says what the job's status holds: `Recorded` as
#: JSON, sealed by the job's key (`cpr_contract.roster.seal`). A leader ignores any other.
RECORDED_HEADER = "X-CPRJob-Recorded"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the job's status holds of the leader's reports, as the operator says with each request for the next one.

    That a report was sent does not show that it was recorded: anybody may ask for it, and the answer may be lost.
    `anchor` is the key of the newest anchor, empty for none; `evaluation` the step of the last evaluation in this
    `generation`, 0 for none.
    """

    generation: int
    anchor: str
    evaluation: int


@dataclass(frozen=True, slots=True)
class RosterNote:
    """A field beside those of the leader's roster, in its annotation.

    An operator that has not made the job's key cannot seal a header. It writes there what the status holds.
    """

    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """A trainer's answer on `/status`; fields after `problem` are the leader's and empty elsewhere.

    `samples` are complete; `samples_started` is an upper bound of what can have reached any shard,
    running and prefetched steps included. `total_samples` is 0 until the data is read. `lost` are
    the sample ranges missing from the dense state in this generation, because no trainer survived
    and an older dense save was loaded. `shard_saves[i]` are the samples of shard i's last committed
    save (as its acknowledgements say), -1 if unknown. `silent` names members ("shard/3",
    "trainer/1") whose heartbeat this trainer misses for `silence_s`, or that it cannot connect to,
    and `overdue` the same for `overdue_s`. `met` is the anchor at whose step all trainers stand,
    because their roster asked them to meet: it holds exactly the steps up to then, of every rank,
    on every shard. `result` is the final anchor. Since this process leads this generation, `saves`
    cuts were committed and `save_stall_s` of training time were lost to saves, stalls and slower
    steps; `commit_s` is how long the last one took from cut to commit. `samples_per_s` is the speed
    while nothing is saved, `paused_s` the time that this process waited or stood still. `sync_gap`
    is the mean number of steps that this trainer takes between two averages of the dense copies, in
    a shadow mode. `degraded_samples` are those of steps that this process trained without a shard,
    in this generation. `new_files` are those that data.uri names and which came after the job had
    begun, as the leader found them when it started, or after an anchor since then: they are not
    trained. With replay, `shard_saves` is told by every trainer, `shard_incarnations[i]` is the
    incarnation of shard i that told it (-1 if unknown), and `forgotten[i]` are the samples up to
    which this trainer cannot push to shard i again; what comes after them it keeps, or knows to be
    saved. -1 before its first push. `shard_protected[i]` are the samples up to which parity holds
    shard i, as it told last; -1 where it does not. Without lockstep `step` and `samples` are the
    leader's knowledge of what all ranks have completed, and `waiting_for` may name trainers that it
    does without. `auc` and `logloss` are of the first label. `metrics` are figures by name:
    "calibration" of a single label, or "LABEL.auc", "LABEL.logloss" and "LABEL.calibration" of each
    where there are several, then the network's own. `evaluation` is the last one on held-out
    samples. With `early_stop` `best` is the best one, whose model is the job's. `lives` and
    `in_place_s` are as a shard's, and a trainer works again when it has completed a step. `workers`
    is how many workers this process computes with, known once the data is read, and
    `workers_reason` why. `early_save_s` are the seconds of training between the last two cuts if the
    last was made before its interval was over, because pushes filled the memory for replay.
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
    in_place_s: ByLife = ()
    best: BestEvaluation | None = None
    workers: int | None = None
    workers_reason: str = ""
    early_save_s: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The leader's last word once nothing is left to train: the final anchor, what it lacks, and the scores there.

    lost: sample ranges missing from its dense state in this generation, as in a report.
    loss: mean loss of the last steps, in nats unless the network has its own; auc, logloss, metrics: progressive
    validation over all samples that count, as in a report. None where nothing could be scored. evaluation, best: as in
    a report, without the groups. Where the last model is not the best one, `best` names another anchor. total_samples:
    as in a report, for a job that ends before the operator reads one; 0 of an image that does not state it.
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
