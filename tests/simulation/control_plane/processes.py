"""State of the fake data plane: saves, processes, and their steps.

In addition to the state of a real process, each state has the steps that are truly in it, a bit for each. No process
reads these bits; tests compare the charged losses with the missing steps. A shard has them for each of its cells:
portions of the tables that never lie apart, however many shards there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import and_

from cpr_contract.reports import Problem, SaveRef, ShardState, TrainerState
from cpr_contract.roster import AnchorRef, ShardRoster, TrainerRoster
from cpr_contract.spec import JobSpec

Ranges = tuple[tuple[int, int], ...]
#: The steps that are in each cell of a shard.
Cells = tuple[int, ...]
#: The number of cells of all shards together: 1, 2, 3 and 4 shards hold whole cells.
CELLS = 12
LOAD_S = 0.5
#: The cost of a save in reports; a save is committed the moment it is made.
SAVE_S, COMMIT_S = 0.05, 0.1
FLUSH_S = 1.5
#: The exit code of a process that SIGTERM ended before it had anything to save.
TERMINATED = 143


def steps_in_all(cells: Cells) -> int:
    """The steps that are in each of these cells."""
    return reduce(and_, cells)


@dataclass
class Save:
    """A save of one shard (`cells`), or of the dense state (`steps`)."""

    samples: int
    lost: Ranges
    key: str
    steps: int = 0
    cells: Cells = ()


@dataclass
class Store:
    """The saves of the processes of one job; they outlive the processes."""

    shards: dict[tuple[int, int], list[Save]] = field(default_factory=dict)  # (generation, index)
    dense: dict[int, list[Save]] = field(default_factory=dict)  # generation
    anchors: list[AnchorRef] = field(default_factory=list)
    anchored: dict[str, tuple[list[Cells], int]] = field(default_factory=dict)  # anchor -> all shards' cells, steps
    claims: dict[tuple[int, int], int] = field(default_factory=dict)  # (generation, index) -> who chose a save last
    damaged: set[str] = field(default_factory=set)  # saves and anchors that do not verify
    down: bool = False
    cleaned: tuple[str, ...] | None = None  # the saves that a cleanup spared, once one has run


@dataclass
class Shard:
    """A shard's process."""

    roster: ShardRoster
    now: float
    state: ShardState = ShardState.STARTING
    generation: int = 0
    samples: int = 0
    restored: int | None = None
    resumed: int | None = None
    lost: Ranges = ()
    newest: SaveRef | None = None
    ready_at: float | None = None
    stopped: bool = False
    problem: Problem | None = None
    cells: Cells = (0,)
    replayed: int = 0

    @property
    def steps(self) -> int:
        """Those that no cell lacks."""
        return steps_in_all(self.cells)


@dataclass
class Trainer:
    """A trainer's process. `samples` is None until it holds a dense state of its generation."""

    roster: TrainerRoster
    now: float
    state: TrainerState = TrainerState.STARTING
    generation: int = 0
    group: int = 0
    samples: int | None = None
    lost: Ranges = ()
    stopped: bool = False
    waiting_for: tuple[str, ...] = ()
    problem: Problem | None = None
    offered: int | None = None
    steps: int = 0
    met: AnchorRef | None = None
    served: set[tuple[int, int]] = field(default_factory=set)  # (index, incarnation) of shards that were ready for it
    degraded: int = 0
    new_files: int = 0
    since: int = 0  # what it pushed before, another process pushed
    reported: dict[int, tuple[int, int]] = field(default_factory=dict)  # shard -> samples of its save, its incarnation
    forgotten: dict[int, int] = field(default_factory=dict)  # shard -> samples that it cannot push again

    def keeps_after(self, shard: int) -> int:
        """The samples up to which it cannot push to a shard again."""
        return max(self.since, self.forgotten.get(shard, 0))


@dataclass
class Plane:
    """All processes of one job, by pod name."""

    spec: JobSpec
    total: int
    keep: int = 3
    store: Store = field(default_factory=Store)
    shards: dict[str, Shard] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    spares: set[str] = field(default_factory=set)  # pods that no roster names yet
    heartbeat_missing_since: dict[str, float] = field(default_factory=dict)
    trained_s: float = 0.0
    cut_s: float = 0.0
    step_s: float = 0.0
    saves: int = 0
    healing: bool = False  # who is new in the group keeps nothing of before
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)  # pod -> exit code, message
    result_slice: slice = field(default_factory=lambda: slice(None))  # what a kubelet keeps of a leader's result
    now: float = 0.0
    pins: int = 1  # of data that arrives; `total` samples of it are pinned
    voids: int = 0
    late: tuple[str, ...] = ()
    data_ended: bool = False

    @property
    def is_open(self) -> bool:
        return self.spec.data.follow is not None and not self.data_ended

    @property
    def trainable(self) -> int:
        """The samples that are trained by now: the last batch waits until it is known whether it ends the data."""
        follow = self.spec.data.follow
        return self.total - (self.spec.data.batch_size if self.is_open and follow is not None and follow.may_end else 0)

    def arrive(self, samples: int, *, voids: int = 0, late: tuple[str, ...] = (), end: bool = False) -> None:
        """Pin files with this number of samples, and voids after them."""
        self.total += samples + voids
        self.pins, self.voids, self.late = self.pins + 1, self.voids + voids, self.late + late
        self.data_ended = end

    def process(self, pod: str) -> Shard | Trainer | None:
        return self.shards.get(pod) or self.trainers.get(pod)

    def step(self, samples: int) -> int:
        return -(-samples // self.spec.data.batch_size)

    def track_heartbeats(self, now: float) -> None:
        """Record since when processes have been silent."""
        self.now = now
        processes: dict[str, Shard | Trainer] = {**self.shards, **self.trainers}
        for pod, process in processes.items():
            if not process.stopped:
                self.heartbeat_missing_since.pop(pod, None)
            else:
                self.heartbeat_missing_since.setdefault(pod, now)


class Saving(Plane):
    """Saves of one job: a save is committed the moment it is made."""

    def _candidates(self, roster: ShardRoster) -> list[Save]:
        anchor = roster.anchor
        key, base = (anchor.key, anchor.samples) if anchor else ("", 0)
        first = Save(base, (), key, cells=self._anchored_cells(key, roster.index))
        saves = self.store.shards.get((roster.counters.generation, roster.index), [])
        return [first, *(save for save in saves if save.key not in self.store.damaged)]

    def _anchored_cells(self, anchor: str, index: int) -> Cells:
        """The cells of a shard in an anchor, whatever shards wrote it."""
        mine = slice(index * CELLS // self.spec.shards, (index + 1) * CELLS // self.spec.shards)
        held = [cell for cells in self.store.anchored[anchor][0] for cell in cells] if anchor else CELLS * [0]
        return tuple(held[mine])

    def _save_shard(self, shard: Shard) -> SaveRef:
        roster = shard.roster
        prefix = f"{self.spec.job_uid}/gen-{shard.generation:04d}/shard-{roster.index:04d}"
        key = f"{prefix}/inc-{roster.incarnation:04d}/{shard.samples}"
        saves = self.store.shards.setdefault((shard.generation, roster.index), [])
        successor = self.store.claims.get((shard.generation, roster.index), 0)
        if successor <= roster.incarnation and (not saves or saves[-1].samples < shard.samples):
            saves.append(Save(shard.samples, shard.lost, key, cells=shard.cells))
        shard.newest = SaveRef(key, self.step(shard.samples), shard.samples)
        return shard.newest

    def _save_dense(self, leader: Trainer, samples: int) -> str:
        key = f"{self.spec.job_uid}/gen-{leader.generation:04d}/dense/{samples}"
        self.store.dense.setdefault(leader.generation, []).append(Save(samples, leader.lost, key, leader.steps))
        return key

    def _line(self, roster: TrainerRoster) -> list[AnchorRef]:
        base = roster.anchor.samples if roster.anchor else 0
        generation = roster.counters.generation
        return [a for a in self.store.anchors if a.generation == generation or a.samples <= base]
