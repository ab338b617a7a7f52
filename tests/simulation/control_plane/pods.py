"""A small deterministic data plane: trainers and shards of one job, in virtual time and without tensors.

All positions are samples. A step trains one batch on all members at once; a save is committed the moment it is made.
"""

from __future__ import annotations

from typing import Any

from cpr_contract.codec import from_json, to_json
from cpr_contract.reports import Deleted, ExitCode, Problem, Result, SaveRef, ShardState, TrainerState
from cpr_contract.roster import AnchorRef, ShardRoster, TrainerRoster
from simulation.control_plane.processes import FLUSH_S, LOAD_S, TERMINATED, Save, Saving, Shard, Trainer
from simulation.control_plane.reports import shard_report, spare_report, trainer_report

__all__ = ["FLUSH_S", "DataPlane"]


class DataPlane(Saving):
    """The behaviour of the processes of one job."""

    def start(self, pod: str, roster: ShardRoster | TrainerRoster, now: float) -> None:
        match roster:
            case ShardRoster():
                self.shards[pod] = Shard(roster, now)
            case TrainerRoster():
                self.trainers[pod] = Trainer(roster, now)

    def hand_over(self, pod: str, text: str, now: float) -> bool:
        """Give a process its new roster, or a spare its first; whether the roster asks it to stop."""
        if pod in self.spares:
            self.spares.remove(pod)
            self.start(pod, from_json(ShardRoster, text), now)
        for processes, kind in ((self.shards, ShardRoster), (self.trainers, TrainerRoster)):
            if pod in processes:
                roster: Any = from_json(kind, text)
                processes[pod].roster = roster
                return bool(roster.stop)
        return False

    def kill(self, pod: str) -> None:
        self.spares.discard(pod)
        self.shards.pop(pod, None)
        self.trainers.pop(pod, None)

    def flush(self, pod: str) -> tuple[int, str]:
        """SIGTERM: save what there is, end. Returns exit code and termination message."""
        process = self.process(pod)
        self.kill(pod)
        match process:
            case Shard(state=ShardState.READY) as shard if self._served(shard) and not self.store.down:
                ref = self._save_shard(shard)
                return ExitCode.FLUSHED, to_json(ref)
            case Trainer(samples=int(samples)) as trainer if trainer.roster.leader == trainer.roster.index:
                if self.store.down:
                    return TERMINATED, ""
                anchor = self._last_anchor(trainer, samples)
                if anchor is not None:
                    return ExitCode.FLUSHED, to_json(anchor)
                key = self._save_dense(trainer, samples)
                return ExitCode.FLUSHED, to_json(SaveRef(key, self.step(samples), samples))
            case Trainer():
                return ExitCode.FLUSHED, ""
            case _:
                return TERMINATED, ""

    def tick(self, now: float, dt: float) -> None:
        self.step_s = dt
        for shard in [*self.shards.values()]:
            if not shard.stopped:
                self._run_shard(shard, now)
        for trainer in [*self.trainers.values()]:
            if not trainer.stopped:
                self._run_trainer(trainer)
        self._form_group()
        self._train(dt)
        self._report_saves()
        self.track_heartbeats(now)

    def report(self, pod: str) -> bytes | None:
        if pod in self.spares:
            return to_json(spare_report(self)).encode()
        process = self.process(pod)
        if process is None or process.stopped:
            return None
        return to_json(
            shard_report(self, process) if isinstance(process, Shard) else trainer_report(self, process)
        ).encode()

    def clean_up(self, arguments: list[str]) -> tuple[int, str]:
        """Delete all saves; the exit code and the termination message of the process that does."""
        if self.store.down:
            return ExitCode.INTERNAL, to_json(Problem("StoreUnreachable", "The store does not answer.", "Check it."))
        self.store.cleaned = tuple(arguments[2::2])
        return ExitCode.OK, to_json(Deleted(7, 7000))

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
            if now >= shard.ready_at and not self.store.down:
                self._restore(shard)

    def _restore(self, shard: Shard) -> None:
        roster = shard.roster
        saves = self._candidates(roster)
        if roster.anchor is not None and roster.anchor.key in self.store.damaged:
            shard.problem = Problem("AnchorDamaged", "a part does not verify", "nothing")
            return
        save = saves[-1]
        shard.newest = SaveRef(save.key, self.step(save.samples), save.samples) if save.key else None
        if save.samples < roster.floor_samples:
            shard.state = ShardState.BELOW_FLOOR
            return
        shard.problem = None
        shard.generation, shard.state = roster.counters.generation, ShardState.READY
        shard.samples, shard.lost, shard.cells = save.samples, save.lost, save.cells
        self.store.claims[shard.generation, roster.index] = roster.incarnation
        if roster.incarnation > 1:
            shard.restored, shard.resumed = save.samples, None

    def _served(self, shard: Shard) -> bool:
        """Return whether the trainers have pushed to it since its restore."""
        base = shard.roster.anchor.samples if shard.roster.anchor else 0
        return shard.samples > base if shard.restored is None else shard.resumed is not None

    # trainers

    def _run_trainer(self, trainer: Trainer) -> None:
        counters = trainer.roster.counters
        if trainer.generation != counters.generation:
            fresh = trainer.generation == 0
            trainer.generation, trainer.samples, trainer.lost = counters.generation, None, ()
            trainer.group = 0 if fresh else trainer.group
            trainer.served, trainer.degraded = set(), 0
            trainer.state = TrainerState.JOINING
            if not fresh:
                self._begin(trainer)

    def _begin(self, trainer: Trainer) -> None:
        """Stand at the anchor that the generation starts from."""
        anchor = trainer.roster.anchor
        trainer.samples = trainer.since = anchor.samples if anchor else 0
        trainer.reported, trainer.forgotten = {}, {}
        trainer.steps = self.store.anchored[anchor.key][1] if anchor else 0

    def _group(self) -> list[Trainer] | None:
        """The leader's group, leader first; None unless all of it run, under one roster."""
        leader = self._leader()
        if leader is None:
            return None
        requested = {(peer.index, peer.incarnation): peer for peer in leader.roster.trainers}
        found = {
            (t.roster.index, t.roster.incarnation): t
            for t in self.trainers.values()
            if not t.stopped
            and t.roster.counters.group == leader.roster.counters.group
            and t.generation == leader.generation
        }
        if any(key not in found or not peer.host for key, peer in requested.items()):
            return None
        return [leader, *(found[key] for key in requested if found[key] is not leader)]

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
            if all(trainer is not other for other in with_state):
                trainer.since = best.samples or 0
                self.healing |= trainer.since > 0
            trainer.samples, trainer.lost, trainer.steps = best.samples, best.lost, best.steps
            trainer.group = trainer.roster.counters.group

    def _load_dense(self, leader: Trainer) -> bool:
        roster = leader.roster
        if self.store.down:
            return False
        anchor = roster.anchor
        first = Save(anchor.samples, (), anchor.key, self.store.anchored[anchor.key][1]) if anchor else Save(0, (), "")
        save = [first, *self.store.dense.get(leader.generation, [])][-1]
        samples, lost = save.samples, save.lost
        leader.offered, leader.steps = samples, save.steps
        if samples < roster.dense_floor_samples:
            leader.state = TrainerState.BELOW_FLOOR
            return False
        shards = self._shards_of(roster)
        if shards is None:
            return False
        if not self.spec.lockstep:  # shards drop what they have: nothing is lost, and some is trained again
            leader.samples, leader.lost = min(samples, *(shard.samples for shard in shards)), lost
            return True
        goes_on = max(samples, *(shard.samples for shard in shards))
        leader.samples = goes_on
        leader.lost = (*lost, (samples, goes_on)) if samples < goes_on else lost
        return True

    def _shards_of(self, roster: TrainerRoster) -> list[Shard] | None:
        """All shards that the roster names, ready in its generation; None if one is unavailable."""
        found = self._ready_shards(roster)
        return [found[key] for key in sorted(found)] if len(found) == len(roster.shards) else None

    def _ready_shards(self, roster: TrainerRoster) -> dict[tuple[int, int], Shard]:
        """Those that the roster names and that serve its generation, by index and incarnation."""
        requested = {(peer.index, peer.incarnation) for peer in roster.shards if peer.host}
        found = {
            (s.roster.index, s.roster.incarnation): s
            for s in self.shards.values()
            if not s.stopped and s.state is ShardState.READY and s.generation == roster.counters.generation
        }
        return {key: shard for key, shard in found.items() if key in requested}

    # training

    def _train(self, dt: float) -> None:
        group = self._group()
        if group is None or group[0].samples is None or any(trainer.roster.stop for trainer in group):
            return
        position = group[0].samples
        if not self._meet(group, position):
            self._step(group, position, dt)

    def _step(self, group: list[Trainer], position: int, dt: float) -> None:
        """One step of the whole group, if no shard is waited for."""
        is_training = position < self.trainable
        after = min(position + self.spec.data.batch_size, self.trainable)
        shards = self._shards_for(group, after if is_training else None)
        for trainer in group:
            trainer.state = TrainerState.TRAINING if shards else TrainerState.PAUSED
            trainer.waiting_for = () if shards else ("shard",)
        if shards is None:
            return
        complete = len(shards) == len(group[0].roster.shards)
        for shard in shards:
            self._replay(shard, position, group)
            for trainer in group:
                trainer.served.add((shard.roster.index, shard.roster.incarnation))
        bit = is_training << self.step(after)
        for trainer in group:
            trainer.degraded += 0 if complete else after - position
            trainer.samples, trainer.steps = after, trainer.steps | bit
        for shard in shards:
            shard.samples, shard.cells = max(shard.samples, after), tuple(cell | bit for cell in shard.cells)
        self.trained_s += dt
        if self._is_due(group[0], after) and complete and not self.store.down:
            self.cut_s, self.healing = self.trained_s, False
            self._cut(group[0], shards, after)
        if after == self.total and not self.is_open and complete and not self.store.down:
            self._end(group)

    def _is_due(self, leader: Trainer, samples: int) -> bool:
        """Return whether a cut is due; where all wait for data to arrive, once."""
        if samples == self.trainable:
            line = self._line(leader.roster)
            return not (self.is_open and line and line[-1].samples == samples)
        by_time = self.trained_s - self.cut_s >= leader.roster.interval_s
        return by_time or (self.healing and self.spec.replay.enabled)

    def _meet(self, group: list[Trainer], samples: int) -> bool:
        """Return whether one of the group waits here, by its roster; when all do, the step is saved."""
        aligning, shards = any(trainer.roster.meet for trainer in group), self._shards_of(group[0].roster)
        farther = any(shard.samples > samples for shard in shards or ())
        if not aligning or farther or samples in {0, self.trainable}:
            group[0].met = None
            return False
        together = all(trainer.roster.meet for trainer in group)
        for trainer in group:
            trainer.state = TrainerState.MEETING
            trainer.waiting_for = () if shards else ("shard",)
        if together and shards and not self.store.down:
            self._show_all(group, shards, samples)
            group[0].met = self._anchor_at(group[0], shards, samples)
        return True

    def _show_all(self, group: list[Trainer], shards: list[Shard], samples: int) -> None:
        """A shard that came back without the last step gets it again."""
        for shard in shards:
            if shard.samples < samples:
                before = max(samples - self.spec.data.batch_size, shard.samples)
                self._replay(shard, before, group)
                bit = 1 << self.step(samples)
                shard.samples, shard.cells = samples, tuple(cell | bit for cell in shard.cells)
            for trainer in group:
                trainer.served.add((shard.roster.index, shard.roster.incarnation))

    def _shards_for(self, group: list[Trainer], end: int | None) -> list[Shard] | None:
        """The shards that the group's next step, which ends at sample `end`, changes; None if it waits for one.

        Leave to go without a shard is used up once it was ready for any of them. A trainer that joined since waits for
        all shards, as does the end of the job (None).
        """
        found = self._ready_shards(group[0].roster)
        lost = {(peer.index, peer.incarnation) for peer in group[0].roster.shards} - found.keys()
        for trainer in group:
            roster, begun = trainer.roster, bool(trainer.served)
            allowed = {a.shard for a in roster.allowances if begun and end is not None and end <= a.until}
            spared = {(p.index, p.incarnation) for p in roster.shards if p.index in allowed} - trainer.served
            if not lost <= spared:
                return None
        return [found[key] for key in sorted(found)]

    def _replay(self, shard: Shard, position: int, group: list[Trainer]) -> None:
        """All push again what they kept; what any of them does not keep is lost, in whole steps."""
        if shard.restored is None or shard.resumed is not None:
            return
        retained_after = position
        if self.spec.replay.enabled:
            retained_after = min(max(trainer.keeps_after(shard.roster.index) for trainer in group), position)
        shard.resumed = max(shard.restored, retained_after)
        if shard.restored < retained_after:
            shard.lost = (*shard.lost, (shard.restored, retained_after))
        if shard.resumed < position:
            again = group[0].steps >> self.step(shard.resumed) + 1 << self.step(shard.resumed) + 1
            shard.cells = tuple(cell | again for cell in shard.cells)
            shard.samples, shard.replayed = position, position - shard.resumed

    def _report_saves(self) -> None:
        """Trainers forget what a save holds."""
        for trainer in self.trainers.values():
            if trainer.stopped or trainer.samples is None:
                continue
            for (index, incarnation), shard in self._ready_shards(trainer.roster).items():
                saved = shard.newest.samples if shard.newest else 0
                trainer.reported[index] = saved, incarnation
                trainer.forgotten[index] = max(trainer.forgotten.get(index, 0), saved)

    def _cut(self, leader: Trainer, shards: list[Shard], position: int) -> None:
        for shard in shards:
            self._save_shard(shard)
        self._save_dense(leader, position)
        self.saves += 1
        key = f"{self.spec.job_uid}/gen-{leader.generation:04d}/dense/anchor-{position}"
        self.store.anchored[key] = [shard.cells for shard in shards], leader.steps
        ref = AnchorRef(key, f"{position:064x}", leader.generation, self.step(position), position)
        self.store.anchors = [*self._line(leader.roster), ref][-self.keep :]

    def _last_anchor(self, leader: Trainer, samples: int) -> AnchorRef | None:
        """An anchor of where all stand, if the whole job stops and all shards are there; taken now, if need be."""
        shards = self._shards_of(leader.roster) if leader.roster.stop else None
        if not shards or not samples or any(shard.samples != samples for shard in shards):
            return None
        return self._anchor_at(leader, shards, samples)

    def _anchor_at(self, leader: Trainer, shards: list[Shard], samples: int) -> AnchorRef:
        line = self._line(leader.roster)
        if line and line[-1].samples == samples:
            return line[-1]
        self._cut(leader, shards, samples)
        return self.store.anchors[-1]

    def _result(self, leader: Trainer) -> str:
        report = trainer_report(self, leader)
        last = self.store.anchors[-1]
        scores = report.loss, report.auc, report.logloss
        result = Result(last, report.lost, *scores, total_samples=report.total_samples, voids=self.voids)
        return to_json(result)[self.result_slice]

    def _end(self, group: list[Trainer]) -> None:
        names = {id(t): name for name, t in self.trainers.items()}
        for trainer in group:
            result = self._result(trainer) if trainer is group[0] else ""
            self.ended[names[id(trainer)]] = (ExitCode.OK, result)
            del self.trainers[names[id(trainer)]]
