"""What the fake processes of a job write to their store, and read from it."""

from __future__ import annotations

from cpr_contract.reports import SaveRef
from cpr_contract.roster import AnchorRef, ShardRoster, TrainerRoster
from simulation.control_plane.processes import CELLS, Cells, Plane, Save, Shard, Trainer


class Saving(Plane):
    """Saves of one job: a save is committed the moment it is made."""

    def _candidates(self, roster: ShardRoster) -> list[Save]:
        anchor = roster.anchor
        key, base = (anchor.key, anchor.samples) if anchor else ("", 0)
        first = Save(base, (), key, cells=self._anchored_cells(key, roster.index))
        saves = self.store.shards.get((roster.counters.generation, roster.index), [])
        return [first, *(save for save in saves if save.key not in self.store.damaged)]

    def _anchored_cells(self, anchor: str, index: int) -> Cells:
        """What an anchor holds for a shard, whatever shards wrote it."""
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
