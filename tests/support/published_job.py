"""A job that is trained without processes, its anchors, and publishers of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest
from cpr_contract.model import DynamicSpec
from cpr_contract.requests import ExportRequest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec, PublishSpec
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.export.model_folder import export_model
from cpr_trainer.publish.publisher import Publisher
from cpr_trainer.store import Store
from cpr_trainer.trainer.state import DenseState
from support.dynamic_shards import DynamicShard, draw_ids, with_dynamic_tables
from support.dynamic_steps import universe
from support.memory_store import MemoryStore
from support.saves import ShardBench

#: Keys expire and are evicted within some steps.
RULES = DynamicSpec(min_steps=1, ttl_steps=5)
EVERY_STEP = PublishSpec("file:///models", None, 1)


def publishable(job: JobSpec) -> JobSpec:
    """Return the job with two static tables and two dynamic ones. Most rows never change: a base outweighs deltas."""
    job = with_dynamic_tables(job, RULES)
    first, *others = job.model.tables
    return replace(job, model=replace(job.model, tables=(replace(first, rows=10_000), *others)))


def static(job: JobSpec) -> JobSpec:
    """Return the job with static tables."""
    first, *others = job.model.tables
    return replace(job, model=replace(job.model, tables=(replace(first, rows=10_000), *others)))


@dataclass(eq=False)
class PublishedJob:
    """Takes steps and commits anchors, as a running job does, into `store`. A rollback begins a generation."""

    store: MemoryStore
    shards: int = 2
    alter: Callable[[JobSpec], JobSpec] = publishable
    generation: int = 1
    step: int = 0
    anchors: list[AnchorRef] = field(default_factory=list)
    benches: list[ShardBench] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.benches = [self._bench(index) for index in range(self.shards)]

    def _bench(self, index: int) -> ShardBench:
        return ShardBench(self.store, shards=self.shards, index=index, alter=self.alter)

    @property
    def job(self) -> JobSpec:
        return self.benches[0].job

    def train(self, steps: int) -> None:
        """Take steps; their ids and gradients depend on the generation, too."""
        for _ in range(steps):
            self.step += 1
            seed = 1000 * self.generation + 10 * self.step
            ids = [draw_ids(seed, universe()[: 256 if self.step % 2 else 512], 40)]
            for bench in self.benches:
                if self.job.model.dynamic_tables:
                    DynamicShard(bench.job, bench.local).take_step(self.step, ids, seed)
                else:
                    bench.change(self.step % 7, 10 + self.step % 5, 20 + self.generation)

    def anchor(self, *, full: bool = False) -> AnchorRef:
        """Commit an anchor, based on the last one unless it is to be a full one."""
        refs = []
        for bench in self.benches:
            base: tuple[Link, ...] = () if full else bench.links
            refs.append(bench.save(self.step, base, generation=self.generation).ref)
        meta = DenseManifest(
            CONTRACT_VERSION,
            "uid",
            self.generation,
            1,
            self.step,
            self.step,
            1000,
            self.benches[0].layout,
            (),
            ids=self.job.model.table_ids,
        )
        state = DenseState(self.job, 1000)
        state.begin({})
        self.anchors.append(commit_anchor(self.store, meta, state.tensors(), tuple(refs), ((),) * self.shards))
        return self.anchors[-1]

    def train_and_save(self, steps: int = 2, *, full: bool = False) -> AnchorRef:
        self.train(steps)
        return self.anchor(full=full)

    def roll_back(self, anchor: AnchorRef, shards: int | None = None) -> None:
        """Begin a generation at an anchor, perhaps with another number of shards."""
        self.generation, self.step, self.shards = self.generation + 1, anchor.step, shards or self.shards
        self.benches = [self._bench(index) for index in range(self.shards)]
        for bench in self.benches:
            (only,) = bench.choices(1, self.generation, anchor)
            bench.go_on(*bench.restore(only))

    def publisher(self, target: Store, scratch: Path, spec: PublishSpec = EVERY_STEP) -> Publisher:
        """Return a new process's publisher, which has begun."""
        publisher = Publisher(self.store, target, self.job, spec, scratch, lambda: 1000.0)
        publisher.begin()
        return publisher

    def export(self, anchor: str, folder: Path) -> dict[str, bytes]:
        """Return the files of a whole export of an anchor."""
        export_model(self.store, self.job, ExportRequest(anchor), folder)
        return files_of(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
