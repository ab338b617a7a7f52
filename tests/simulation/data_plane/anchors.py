"""Anchors of a simulated job: the leader commits them where all trainers wait for data, and sweeps by the real rules.

Saves are never old enough to be deleted, so the job can go back to any anchor that stays. Data pins are deleted.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, ManifestRef, ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import OPEN_TOTAL
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.checkpoint.anchor.retention import Retention
from cpr_trainer.checkpoint.format.documents import read_shard_manifest
from cpr_trainer.checkpoint.format.records import find_anchor
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.store import ExistsError
from simulation.data_plane.calm import FIRST

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster
    from simulation.data_plane.trainers import Trainer

_KEEP = 2
_YOUNG_S = 1e9


class Anchors:
    """The anchors in the status of a job, oldest first, and the dense state of each."""

    def __init__(self, cluster: Cluster) -> None:
        self.retained: tuple[AnchorRef, ...] = ()
        self._dense: dict[str, int] = {}
        self._cluster = cluster

    def add(self, anchor: AnchorRef, dense: int) -> None:
        """Note an anchor that was committed."""
        self.retained, self._dense[anchor.key] = (*self.retained, anchor)[-_KEEP:], dense

    def go_back(self) -> AnchorRef | None:
        """Return the anchor for a rollback, which becomes the last one, and take its dense state; None: the start."""
        cluster = self._cluster
        if not self.retained:
            cluster.dense_save = 0, FIRST
            return None
        self.retained = self.retained[: cluster.rng.choice((1, len(self.retained)))]
        cluster.probes["the job went back to its oldest anchor"] += len(self.retained) == 1
        cluster.dense_save = self.retained[-1].step, self._dense[self.retained[-1].key]
        return self.retained[-1]


class AnchorWriter:
    """Commits the anchors of one generation while `trainer` leads. `oldest_step`: see `Retention`."""

    def __init__(self, trainer: Trainer) -> None:
        self.generation = trainer.generation
        self._trainer, self._cluster = trainer, trainer.cluster
        self._store, self._job = trainer.cluster.store, trainer.workload.job
        retained = self._cluster.anchors.retained
        self._retention = Retention(
            Pruner(self._store, self._job.job_uid, _YOUNG_S, self._cluster.scheduler.clock),
            random.Random(0),
            lambda: self._cluster.anchors.retained[-1].key,
            lambda _: 0,
            retained if len(retained) == _KEEP else (),
        )

    @property
    def oldest_step(self) -> int:
        return self._retention.oldest_step

    def commit(self, step: int, dense: int) -> bool:
        """Commit the anchor of the step at which all wait; return whether it is there. Raises StoreError."""
        anchors, trainer = self._cluster.anchors, self._trainer
        if not step or any(each.step == step for each in anchors.retained):
            return True
        peers = sorted(trainer.roster.shards, key=lambda peer: peer.index)
        uid, read = self._job.job_uid, list[tuple[ShardManifest, ManifestRef]]()
        for peer in peers:
            found = read_shard_manifest(self._store, uid, self.generation, peer.index, peer.incarnation, step)
            if found is None:
                return False
            read.append(found)
        counters = trainer.roster.counters
        meta = DenseManifest(
            CONTRACT_VERSION,
            uid,
            self.generation,
            counters.group,
            step,
            step * self._job.data.batch_size,
            OPEN_TOTAL,
            layout_hash(self._job.model),
            (),
        )
        refs, lost = tuple(ref for _, ref in read), tuple(manifest.lost for manifest, _ in read)
        anchor: AnchorRef | None
        try:
            anchor = commit_anchor(self._store, meta, {"state": torch.zeros(1)}, refs, lost)
        except ExistsError:  # it names the save of an earlier incarnation of a shard
            anchor = find_anchor(self._store, uid, self.generation, step)
        if anchor is None or self.generation != self._cluster.generation:
            return False
        anchors.add(anchor, dense)
        self._retention.keep(anchors.retained, (manifest for manifest, _ in read))
        before = len(self._store.objects)
        self._retention.tick()
        self._cluster.probes["data pins were deleted"] += len(self._store.objects) < before
        return True
