"""A small deterministic data plane: what trainers and shards of one job do, in virtual time and without tensors.

All positions are samples. A step trains one batch on all members at once; a save is committed the moment it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import from_json, to_json
from cpr_contract.exits import ExitCode, Problem
from cpr_contract.reports import SaveRef, ShardReport, ShardState, TrainerReport, TrainerState
from cpr_contract.roster import AnchorRef, ShardRoster, TrainerRoster
from cpr_contract.spec import JobSpec

Ranges = tuple[tuple[int, int], ...]
LOAD_S = 0.5
FLUSH_S = 1.5
#: The exit code of a process that SIGTERM ended before it had anything to save.
TERMINATED = 143


@dataclass
class Save:
    samples: int
    lost: Ranges
    key: str


@dataclass
class Store:
    """What the processes of one job have written; it outlives them all."""

    shards: dict[tuple[int, int], list[Save]] = field(default_factory=dict)  # (generation, index)
    dense: dict[int, list[tuple[int, Ranges]]] = field(default_factory=dict)  # generation -> (samples, lost)
    anchors: list[AnchorRef] = field(default_factory=list)
    damaged_anchors: set[str] = field(default_factory=set)
    lost_newest: set[int] = field(default_factory=set)  # shards whose newest save does not verify


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


@dataclass
class DataPlane:
    """All processes of one job, by pod name."""

    spec: JobSpec
    total: int
    keep: int = 3
    store: Store = field(default_factory=Store)
    shards: dict[str, Shard] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    silence: dict[str, float] = field(default_factory=dict)
    trained_s: float = 0.0
    cut_s: float = 0.0
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)  # pod -> exit code, message

    def start(self, pod: str, roster: ShardRoster | TrainerRoster, now: float) -> None:
        match roster:
            case ShardRoster():
                self.shards[pod] = Shard(roster, now)
            case TrainerRoster():
                self.trainers[pod] = Trainer(roster, now)

    def tell(self, pod: str, text: str) -> None:
        for processes, kind in ((self.shards, ShardRoster), (self.trainers, TrainerRoster)):
            if pod in processes:
                roster: Any = from_json(kind, text)
                processes[pod].roster = roster

    def kill(self, pod: str) -> None:
        self.shards.pop(pod, None)
        self.trainers.pop(pod, None)

    def process(self, pod: str) -> Shard | Trainer | None:
        return self.shards.get(pod) or self.trainers.get(pod)

    def flush(self, pod: str) -> tuple[int, str]:
        """SIGTERM: save what there is, end. Returns exit code and termination message."""
        process = self.process(pod)
        self.kill(pod)
        match process:
            case Shard(state=ShardState.READY) as shard:
                ref = self._save_shard(shard)
                return ExitCode.FLUSHED, to_json(ref)
            case Trainer(samples=int(samples)) as trainer if trainer.roster.leader == trainer.roster.index:
                self.store.dense.setdefault(trainer.generation, []).append((samples, trainer.lost))
                key = f"{self.spec.job_uid}/gen-{trainer.generation:04d}/dense/{samples}"
                return ExitCode.FLUSHED, to_json(SaveRef(key, self._step(samples), samples))
            case Trainer():
                return ExitCode.FLUSHED, ""
            case _:
                return TERMINATED, ""

    def tick(self, now: float, dt: float) -> None:
        for shard in [*self.shards.values()]:
            if not shard.stopped:
                self._run_shard(shard, now)
        for trainer in [*self.trainers.values()]:
            if not trainer.stopped:
                self._run_trainer(trainer)
        self._form_group()
        self._train(dt)
        self._listen(now)

    def report(self, pod: str) -> bytes | None:
        process = self.process(pod)
        if process is None or process.stopped:
            return None
        return to_json(
            self._shard_report(process) if isinstance(process, Shard) else self._trainer_report(process)
        ).encode()

    # shards

    def _run_shard(self, shard: Shard, now: float) -> None:
        roster = shard.roster
        if shard.generation and roster.counters.generation > shard.generation:
            shard.generation, shard.ready_at, shard.state = 0, None, ShardState.RESTORING
            shard.restored = shard.resumed = None
        if shard.state in {ShardState.STARTING, ShardState.BELOW_FLOOR} or shard.generation == 0:
            if not roster.may_restore:
                return
            shard.state = ShardState.RESTORING if shard.state is not ShardState.BELOW_FLOOR else shard.state
            shard.ready_at = shard.ready_at or now + LOAD_S
            if now >= shard.ready_at:
                self._restore(shard)

    def _restore(self, shard: Shard) -> None:
        roster = shard.roster
        saves = self._candidates(roster)
        if roster.anchor is not None and roster.anchor.key in self.store.damaged_anchors:
            shard.problem = Problem("AnchorDamaged", "a part does not verify", "nothing")
            return
        if roster.index in self.store.lost_newest and len(saves) > 1:
            saves = saves[:-1]
        save = saves[-1]
        shard.newest = SaveRef(save.key, self._step(save.samples), save.samples) if save.key else None
        if save.samples < roster.floor_samples:
            shard.state = ShardState.BELOW_FLOOR
            return
        shard.problem = None
        shard.generation, shard.state = roster.counters.generation, ShardState.READY
        shard.samples, shard.lost = save.samples, save.lost
        if roster.incarnation > 1:
            shard.restored, shard.resumed = save.samples, None

    def _candidates(self, roster: ShardRoster) -> list[Save]:
        base = roster.anchor.samples if roster.anchor else 0
        first = Save(base, (), roster.anchor.key if roster.anchor else "")
        return [first, *self.store.shards.get((roster.counters.generation, roster.index), [])]

    def _save_shard(self, shard: Shard) -> SaveRef:
        roster = shard.roster
        prefix = f"{self.spec.job_uid}/gen-{shard.generation:04d}/shard-{roster.index:04d}"
        key = f"{prefix}/inc-{roster.incarnation:04d}/{shard.samples}"
        saves = self.store.shards.setdefault((shard.generation, roster.index), [])
        if not saves or saves[-1].samples < shard.samples:
            saves.append(Save(shard.samples, shard.lost, key))
        shard.newest = SaveRef(key, self._step(shard.samples), shard.samples)
        return shard.newest

    # trainers

    def _run_trainer(self, trainer: Trainer) -> None:
        counters = trainer.roster.counters
        if trainer.generation != counters.generation:
            fresh = trainer.generation == 0
            trainer.generation, trainer.samples, trainer.lost = counters.generation, None, ()
            trainer.group = 0 if fresh else trainer.group
            trainer.state = TrainerState.JOINING
            if not fresh:
                trainer.samples = trainer.roster.anchor.samples if trainer.roster.anchor else 0

    def _group(self) -> list[Trainer] | None:
        """The leader's group, leader first; None unless all of it run, under one roster."""
        leader = self._leader()
        if leader is None:
            return None
        wanted = {(peer.index, peer.incarnation): peer for peer in leader.roster.trainers}
        found = {
            (t.roster.index, t.roster.incarnation): t
            for t in self.trainers.values()
            if not t.stopped
            and t.roster.counters.group == leader.roster.counters.group
            and t.generation == leader.generation
        }
        if any(key not in found or not peer.host for key, peer in wanted.items()):
            return None
        return [leader, *(found[key] for key in wanted if found[key] is not leader)]

    def _leader(self) -> Trainer | None:
        leaders = [t for t in self.trainers.values() if t.roster.index == t.roster.leader and not t.stopped]
        return max(leaders, key=lambda t: t.roster.counters.roster, default=None)

    def _form_group(self) -> None:
        group = self._group()
        if group is None:
            for trainer in self.trainers.values():
                if trainer.samples is not None:
                    trainer.state, trainer.waiting_for = TrainerState.PAUSED, ("trainer",)
            return
        leader = group[0]
        with_state = [t for t in group if t.samples is not None]
        if not with_state and not self._load_dense(leader):
            return
        best = max((t for t in group if t.samples is not None), key=lambda t: t.samples or 0)
        for trainer in group:
            trainer.samples, trainer.lost = best.samples, best.lost
            trainer.group = trainer.roster.counters.group

    def _load_dense(self, leader: Trainer) -> bool:
        roster = leader.roster
        base = roster.anchor.samples if roster.anchor else 0
        saves = [(base, ()), *self.store.dense.get(leader.generation, [])]
        samples, lost = saves[-1]
        leader.offered = samples
        if samples < roster.dense_floor_samples:
            leader.state = TrainerState.BELOW_FLOOR
            return False
        shards = self._shards_of(roster)
        if shards is None:
            return False
        goes_on = max(samples, *(shard.samples for shard in shards))
        leader.samples = goes_on
        leader.lost = (*lost, (samples, goes_on)) if samples < goes_on else lost
        return True

    def _shards_of(self, roster: TrainerRoster) -> list[Shard] | None:
        """All shards that the roster names, ready in its generation; None if one is away."""
        found = {
            (s.roster.index, s.roster.incarnation): s
            for s in self.shards.values()
            if not s.stopped and s.state is ShardState.READY and s.generation == roster.counters.generation
        }
        wanted = [(peer.index, peer.incarnation) for peer in roster.shards if peer.host]
        if len(wanted) < len(roster.shards) or any(key not in found for key in wanted):
            return None
        return [found[key] for key in wanted]

    # training

    def _train(self, dt: float) -> None:
        group = self._group()
        if group is None or group[0].samples is None:
            return
        shards = self._shards_of(group[0].roster)
        for trainer in group:
            trainer.state = TrainerState.TRAINING if shards else TrainerState.PAUSED
            trainer.waiting_for = () if shards else ("shard",)
        if shards is None:
            return
        position = group[0].samples
        for shard in shards:
            self._catch_up(shard, position)
        position = min(position + self.spec.data.batch_size, self.total)
        for trainer in group:
            trainer.samples = position
        for shard in shards:
            shard.samples = position
        self.trained_s += dt
        last = position == self.total
        if last or self.trained_s - self.cut_s >= group[0].roster.interval_s:
            self.cut_s = self.trained_s
            self._cut(group[0], shards, position)
        if last:
            self._end(group)

    def _catch_up(self, shard: Shard, position: int) -> None:
        if shard.restored is not None and shard.resumed is None:
            shard.resumed = position
            if shard.restored < position:
                shard.lost = (*shard.lost, (shard.restored, position))

    def _cut(self, leader: Trainer, shards: list[Shard], position: int) -> None:
        for shard in shards:
            self._save_shard(shard)
        self.store.dense.setdefault(leader.generation, []).append((position, leader.lost))
        key = f"{self.spec.job_uid}/gen-{leader.generation:04d}/dense/anchor-{position}"
        ref = AnchorRef(key, f"{position:064x}", leader.generation, self._step(position), position)
        self.store.anchors = [*self._line(leader.roster), ref][-self.keep :]

    def _line(self, roster: TrainerRoster) -> list[AnchorRef]:
        base = roster.anchor.samples if roster.anchor else 0
        generation = roster.counters.generation
        return [a for a in self.store.anchors if a.generation == generation or a.samples <= base]

    def _end(self, group: list[Trainer]) -> None:
        names = {id(t): name for name, t in self.trainers.items()}
        for trainer in group:
            result = to_json(self.store.anchors[-1]) if trainer is group[0] else ""
            self.ended[names[id(trainer)]] = (ExitCode.OK, result)
            del self.trainers[names[id(trainer)]]

    # silence and reports

    def _listen(self, now: float) -> None:
        for pod, process in {**self.shards, **self.trainers}.items():
            if not process.stopped:
                self.silence.pop(pod, None)
            else:
                self.silence.setdefault(pod, now)
        self._now = now

    def _silent(self, reporter: Shard | Trainer) -> tuple[str, ...]:
        """Members that run and have said nothing for too long, as this process sees it."""
        roster, names = reporter.roster, []
        for pod, since in self.silence.items():
            process = self.process(pod)
            if process is None or self._now - since < self.spec.silence_s or process is reporter:
                continue
            role = env.ROLE_SHARD if isinstance(process, Shard) else env.ROLE_TRAINER
            index, incarnation = process.roster.index, process.roster.incarnation
            if isinstance(roster, TrainerRoster):
                peers = roster.shards if role == env.ROLE_SHARD else roster.trainers
                named = any((peer.index, peer.incarnation) == (index, incarnation) for peer in peers)
            else:
                named = role == env.ROLE_TRAINER and self._newest_trainer(index) == incarnation
            if named:
                names.append(f"{role}/{index}")
        return tuple(names)

    def _newest_trainer(self, index: int) -> int:
        return max(t.roster.incarnation for t in self.trainers.values() if t.roster.index == index)

    def _saved(self, generation: int, index: int) -> int:
        saves = self.store.shards.get((generation, index))
        return saves[-1].samples if saves else -1

    def _step(self, samples: int) -> int:
        return -(-samples // self.spec.data.batch_size)

    def _shard_report(self, shard: Shard) -> ShardReport:
        roster = shard.roster
        generation = shard.generation or (0 if shard.problem is None else roster.counters.generation)
        if shard.state is ShardState.BELOW_FLOOR:
            generation = roster.counters.generation
        return ShardReport(
            contract=CONTRACT_VERSION,
            job_uid=self.spec.job_uid,
            index=roster.index,
            incarnation=roster.incarnation,
            counters=replace(roster.counters, generation=generation),
            state=shard.state,
            applied=(self._step(shard.samples),),
            newest_save=shard.newest,
            restored_samples=shard.restored,
            resumed_samples=shard.resumed,
            lost=shard.lost,
            load_s=LOAD_S if shard.restored is not None else None,
            silent=self._silent(shard),
            problem=shard.problem,
        )

    def _trainer_report(self, trainer: Trainer) -> TrainerReport:
        roster, samples = trainer.roster, trainer.samples or 0
        leads = roster.leader == roster.index
        started = min(samples + 2 * self.spec.data.batch_size, self.total) if samples else 0
        offered = trainer.offered if trainer.state is TrainerState.BELOW_FLOOR else None
        dense = self.store.dense.get(trainer.generation, [])
        newest = offered if offered is not None else (dense[-1][0] if dense else None)
        return TrainerReport(
            contract=CONTRACT_VERSION,
            job_uid=self.spec.job_uid,
            index=roster.index,
            incarnation=roster.incarnation,
            counters=replace(roster.counters, generation=trainer.generation, group=trainer.group),
            state=trainer.state,
            step=self._step(samples),
            samples=samples,
            samples_started=started,
            total_samples=self.total,
            waiting_for=trainer.waiting_for if trainer.state is TrainerState.PAUSED else (),
            silent=self._silent(trainer),
            lost=trainer.lost,
            problem=trainer.problem,
            samples_per_s=1000.0,
            shard_saves=tuple(self._saved(trainer.generation, i) for i in range(self.spec.shards)) if leads else (),
            dense_save=SaveRef("dense", self._step(newest), newest) if leads and newest is not None else None,
            anchors=tuple(self.store.anchors) if leads else (),
        )
