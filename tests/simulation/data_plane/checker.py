"""Invariants of a run: rows are the sum of the pushes that they report, and every missing push is reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cpr_trainer.arrays import Floats, Values
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.restore.lineage import candidates
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.parity.coding import Image
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import MAX_PARTIAL_BATCHES, order_of
from simulation.data_plane.calm import UNKNOWN, CalmRun
from simulation.data_plane.expected_table import Push
from simulation.data_plane.pods import ShardPod
from simulation.data_plane.suspension import Suspension
from simulation.data_plane.workload import DIM, Workload
from support.parity_ring import same

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster
    from simulation.data_plane.trainer_pods import TrainerPod
    from simulation.data_plane.trainers import Trainer


@dataclass(frozen=True)
class LateRead:
    """A read: which steps of a rank it had to show of a shard's rows, and did not."""

    generation: int
    shard: int
    missed: frozenset[Push]
    what: str


@dataclass(frozen=True)
class Due:
    """The steps of a rank that a read has to show.

    The shard's `incarnation` has acknowledged those in `acknowledged`, and earlier incarnations those in `earlier`. Any
    other incarnation has a step only because `pod` pushed it again, which a dead pod does not.
    """

    pod: TrainerPod
    incarnation: int
    acknowledged: set[int]
    earlier: set[int]

    def steps(self, incarnation: int) -> set[int]:
        """Return them, if that incarnation answers."""
        if not self.pod.dead:
            return self.acknowledged | self.earlier
        return self.acknowledged if incarnation == self.incarnation else set()


class Checker:
    """Checks each read of a run, and compares rows with the pushes of the trainers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._workload: Workload = cluster.workload
        self._first = [self._workload.first_values(shard) for shard in range(self._workload.job.shards)]
        #: By shard, step and the pushes up to it that the shard lacks.
        self._rows = {(shard, 0, frozenset[Push]()): first for shard, first in enumerate(self._first)}
        #: Acknowledged pushes, by generation, shard and trainer, and by the incarnation that acknowledged them. Pushes
        #: of a dead trainer are not among them: its successor pushes them again while others continue.
        self._acknowledged: dict[tuple[int, int, TrainerPod], dict[int, set[int]]] = defaultdict(dict)
        self._due: dict[int, list[list[Due]]] = {}
        self._calm = CalmRun(self._workload)
        self.late_reads: list[LateRead] = []

    def before_read(self, trainer: Trainer) -> None:
        """Before a trainer's lookup: record the pushes that it has to see."""
        for other in self._cluster.trainers:
            if other.trainer is not None and not other.dead:
                self._note_acknowledged(other.trainer)
        self._due[trainer.rank] = [
            [self._due_of(other, trainer, shard, link.peer.incarnation) for other in self._cluster.trainers]
            for shard, link in enumerate(trainer.exchange._loop.links)
        ]

    def read(self, trainer: Trainer, step: int, rows: UniqueRows, vectors: Values) -> None:
        """Look at the tallies that a trainer got, and at the vectors of keys."""
        vectors = vectors.reshape(-1, DIM)
        for shard, link in enumerate(trainer.exchange._loop.links):
            part, absent = self._workload.static_part(rows, shard), set[Push]()
            for rank, number in enumerate(self._workload.tallies[shard]):
                at = part.start + int(np.flatnonzero(rows.numbers[part] == number)[0])
                first = self._first[shard][int(rows.places[at] - self._workload.placement.starts[shard])]
                found = self._workload.steps_in((first - vectors[at]).astype(np.float32))
                if self._workload.job.per_step:
                    beyond = {each for each in found if each >= step}
                    assert not beyond, f"rank {trainer.rank} read steps {beyond} of rank {rank} for step {step}"
                absent |= {(rank, each) for each in range(1, step) if each not in found}
                # A rollback drops the pushes of later steps.
                due = self._due[trainer.rank][shard][rank].steps(link.peer.incarnation)
                probes = self._cluster.probes
                whole = not (probes["a trainer was replaced"] or probes["memory for pushes was full"])
                if self._workload.job.per_step and whole:
                    due = set(range(1, step))
                missed = {each for each in due if each < step} - found
                if missed:
                    what = f"rank {trainer.rank} read shard {shard} for step {step}"
                    pushes = frozenset((rank, each) for each in missed)
                    self.late_reads.append(LateRead(trainer.generation, shard, pushes, what))
            if (table := self._workload.expected_table) is not None:
                part = self._workload.key_part(rows, shard)
                state, keys = table.after(shard, step - 1, absent), rows.numbers[part].view(np.uint64)
                wrong = keys[(table.vectors(state, keys, step) != vectors[part]).any(axis=1)]
                assert not len(wrong), f"rank {trainer.rank} read wrong vectors of keys {wrong[:5]} for step {step}"

    def check_rows(self) -> None:
        """Compare the rows of every shard that serves with its report."""
        for pod in self._cluster.pods:
            if pod.serving is not None and (service := self._cluster.services.get(pod.server)) is not None:
                self.missing_of(pod, service)

    def missing_of(self, pod: ShardPod, service: Service) -> set[Push]:
        """The pushes that a shard's rows lack, up to the steps that it reports; it must report them as lost."""
        progress = service.progress
        if progress is None:
            return set()
        who = f"{pod.host} (generation {progress.generation})"
        missing = self._missing_in(service.arena, pod.index, progress.applied, who)
        self._check_reported(progress.losses.so_far(self._order), missing, progress.applied, who)
        if progress.resumed and progress.row_updates.exact:
            pushes = (self._workload.push(*each)[0].on_shard(pod.index) for each in missing)
            rows = sum(part.stop - part.start for part in pushes)
            assert progress.row_updates.lost == rows, f"{who} lost {rows} row updates, reported {progress.row_updates}"
        return missing

    def check_end(self) -> dict[int, set[Push]]:
        """Check rows, saves, parity and reads after the last step. Return the pushes that each shard lacks."""
        missing = dict[int, set[Push]]()
        for pod in self._cluster.newest:
            assert pod.serving is not None, f"{pod.host} does not serve"
            service = self._cluster.services[pod.server]
            assert service.progress is not None
            assert set(service.progress.applied) == {self._workload.last_step}
            missing[pod.index] = self.missing_of(pod, service)
            self._check_save(pod, self._workload.last_step)
        for trainer in self._cluster.trainers:
            assert trainer.trainer is not None
            self._check_dense(trainer.trainer.done, trainer.trainer.dense, missing)
        # Pushes that are repeated at the end, where memory or a save is missing, come rank by rank; no barrier follows.
        buffered = self._workload.job.replay.enabled and not self._cluster.damaged
        for seen in self.late_reads:
            if buffered and seen.generation == self._cluster.generation:
                unseen = seen.missed - missing[seen.shard]
                assert not unseen, f"{seen.what} without {sorted(unseen)}"
        return missing

    def check_stopped(self, stop: Suspension) -> None:
        """Check the saves of a job that has stopped: they are those of one step on all members if there is an anchor.

        There is one if the leader stopped after a step, unless it or a shard was lost meanwhile, or a shard had ended.
        """
        step, dense = self._cluster.dense_save
        missing = {pod.index: self._check_save(pod, stop.anchor) for pod in self._cluster.newest}
        if stop.anchor:
            assert step == stop.anchor, f"the dense state is of step {step}, the anchor of step {stop.anchor}"
            self._check_dense(step, dense, missing)
        if stop.is_due and self._workload.job.per_step:
            assert stop.anchor or stop.disturbed or stop.incomplete, "a job stopped without an anchor"

    def _check_dense(self, step: int, dense: int, missing: dict[int, set[Push]]) -> None:
        """A dense state has the bits of a calm run, unless it was lost, or rows lack pushes."""
        if self._workload.job.per_step and dense != UNKNOWN and not any(missing.values()):
            assert dense == self._calm.dense(step), f"the dense state of step {step} is not that of a calm run"

    def check_parity(self) -> None:
        """At rest the parity that a shard keeps is the XOR of its stripe."""
        for pod in self._cluster.newest:
            mine = self._cluster.redundancies[pod.server]
            shapes = mine._shapes
            expected = [Image.zeros(*shape) for shape in shapes]
            for part, member in enumerate(mine._ring.members(pod.index)):
                theirs = self._cluster.newest[member].server
                point = mine._store.points[part]
                for segment, (rows, *_) in enumerate(shapes):
                    image = self._cluster.redundancies[theirs]._journal.as_of(part, point, segment, range(rows))
                    assert image is not None, f"{member} has no image of its part at {pod.host}"
                    expected[segment].add(image)
            for segment, (rows, *_) in enumerate(shapes):
                assert same(mine._store.read(segment, 0, rows), expected[segment]), f"the parity at {pod.host}"

    @property
    def _order(self) -> BatchOrder:
        data = self._workload.job.data
        return order_of(data.samples or 0, data.batch_size)

    def _missing_in(self, arena: Arena, shard: int, applied: tuple[int, ...], who: str) -> set[Push]:
        workload, missing, first = self._workload, set[Push](), self._first[shard]
        rows = np.concatenate([segment.read(slice(None)) for segment in arena.segments[: workload.static_bands]])
        for rank, number in enumerate(workload.tallies[shard]):
            slot = int(workload.placement.slots_on(shard, np.array([number]))[0])
            found = workload.steps_in(first[slot] - rows[slot])
            beyond = {step for step in found if step > applied[rank]}
            assert not beyond, f"{who} reports steps of rank {rank} up to {applied[rank]}, and has {beyond}"
            missing |= {(rank, step) for step in range(1, applied[rank] + 1)} - {(rank, step) for step in found}
        last = max(applied)
        later = {(rank, step) for rank, own in enumerate(applied) for step in range(own + 1, last + 1)}
        wrong = np.flatnonzero((rows != self._rows_after(shard, last, missing | later)).any(axis=1))
        assert not len(wrong), f"{who}: rows in slots {wrong[:5]} are not the sum of their pushes"
        if (table := workload.expected_table) is not None:
            others = table.differences(arena, shard, table.after(shard, max(applied), missing))
            assert not others, f"{who}: {others} of the dynamic table are not those of its steps"
        return missing

    def _rows_after(self, shard: int, step: int, lacked: Iterable[Push]) -> Floats:
        """Return the rows of static tables on a shard after a step, without these of the pushes up to it."""
        workload = self._workload
        at, unknown = (shard, step, frozenset(lacked)), list[tuple[int, int, frozenset[Push]]]()
        while at not in self._rows:
            unknown.append(at)
            step -= 1
            at = shard, step, frozenset(push for push in at[2] if push[1] <= step)
        for each in reversed(unknown):
            rows, (_, step, without) = self._rows[at].copy(), each
            changes, changed = np.zeros_like(rows), np.zeros(len(rows), np.bool_)
            for rank in range(workload.job.trainers):
                if (rank, step) not in without:
                    slots, gradients = workload.on_shard(shard, rank, step)
                    changes[slots] += gradients  # in the order of ranks
                    changed[slots] = True
            rows[changed] = workload.after(rows[changed] - changes[changed], workload.numbers_on(shard)[changed], step)
            self._rows[each], at = rows, each
        return self._rows[at]

    def _check_reported(
        self, lost: tuple[tuple[int, int], ...], missing: set[Push], applied: tuple[int, ...], who: str
    ) -> None:
        order, trainers = self._order, self._workload.job.trainers
        reported = set[Push]()
        for rank, last in enumerate(applied):
            for step in range(1, last + 1):
                samples = order.slice_of(step, rank, trainers)
                if any(first <= samples.start and samples.stop <= end for first, end in lost):
                    reported.add((rank, step))
        assert missing <= reported, f"{who} misses {sorted(missing - reported)}, and reported {lost}"
        if len(reported) < MAX_PARTIAL_BATCHES:
            assert reported <= missing, f"{who} has {sorted(reported - missing)}, and reported {lost}"

    def _check_save(self, pod: ShardPod, step: int) -> set[Push]:
        """Return the pushes that the newest save of a shard lacks, and reports.

        It verifies, unless it was damaged. It is of this step; 0: of any. If shards update per push, a lost trainer may
        have pushed one step more, which its successor has not reached.
        """
        cluster, job = self._cluster, self._workload.job
        roster = pod.roster
        store = cluster.store.without_faults()
        local = LocalRows.of(job, self._workload.placement, pod.index)
        successor = self._cluster.successor_of(roster)
        newest = candidates(store, job, successor, self._workload.placement)[0]
        try:
            restored = load_shard(store, newest, local)
        except DamagedError:
            if cluster.damaged:
                return set()
            raise
        if step and not cluster.damaged:
            replaced = {trainer.rank for trainer in cluster.trainers if trainer.incarnation > 1}
            later = set() if job.per_step else cluster.suspension.lost_ranks | replaced
            steps = {each - (rank in later and each > step) for rank, each in enumerate(restored.applied)}
            assert steps == {step}, f"the newest save of {pod.host} is {newest}"
        if not restored.step:
            return set()
        missing = self._missing_in(local.arena, pod.index, restored.applied, newest.key)
        self._check_reported(restored.lost, missing, restored.applied, newest.key)
        return missing

    def _due_of(self, pod: TrainerPod, reader: Trainer, shard: int, incarnation: int) -> Due:
        by = self._acknowledged[reader.generation, shard, pod]
        earlier = {step for each, steps in by.items() if each < incarnation for step in steps}
        if pod is reader.pod:
            earlier |= {step for step in pod.pushes if step <= (reader.pushed or 0)}
        return Due(pod, incarnation, set(by.get(incarnation, ())), earlier)

    def _note_acknowledged(self, trainer: Trainer) -> None:
        for shard, link in enumerate(trainer.exchange._loop.links):
            if link.applied > 0 and trainer.generation == trainer.exchange._session.counters.generation:
                by = self._acknowledged[trainer.generation, shard, trainer.pod]
                applied = {step for step in trainer.pod.pushes if step <= link.applied}
                by[link.peer.incarnation] = by.get(link.peer.incarnation, set()) | applied
