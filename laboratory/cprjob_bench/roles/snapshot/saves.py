"""The saves of the bench: the shard that writes them, and their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import ShardManifest
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.write.save import SavedShard, Source
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.store import Store
from cpr_trainer.tables.arena import Home

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class BenchShard:
    """The one shard of a job, its store, and what writes its saves. Every row is filled with its first value."""

    job: JobSpec
    store: Store
    home: Home
    writer: Writer

    @classmethod
    def of(cls, job: JobSpec, store: Store) -> BenchShard:
        """Return the shard, with a writer that is not throttled."""
        home = Home.of(job, Placement.of(job.model, 1), 0)
        home.arena.seed(home.placement, 0, home.seeding)
        return cls(job, store, home, Writer(store, home.arena))

    @property
    def table_bytes(self) -> int:
        """Bytes of rows and optimizer state."""
        return self.home.arena.size_bytes

    def save(self, source: Source, step: int, **draft: Any) -> SavedShard:
        """Write and commit the rows of `source` as the save of `step`; `draft` are fields of its manifest."""
        manifest = replace(
            ShardManifest(
                contract=CONTRACT_VERSION,
                job_uid=self.job.job_uid,
                generation=1,
                index=0,
                incarnation=1,
                kind="Anchor",
                step=step,
                samples=step,
                layout=layout_hash(self.job.model),
                first_place=0,
                places=self.home.placement.total,
                applied=(step,),
                lost=(),
            ),
            **draft,
        )
        return self.writer.commit(self.writer.write(manifest, source, _at_once), _at_once)

    def stored(self) -> dict[str, int]:
        """Return the objects of all saves that are there now, with their sizes in bytes."""
        return {entry.key: entry.size_bytes for entry in self.store.list(f"{self.job.job_uid}/")}

    def clear(self) -> None:
        """Delete all saves."""
        self.store.delete(self.stored())


def delete_all(store: Store, job_uid: str) -> None:
    """Delete everything that begins with the uid, saves or not."""
    store.delete([entry.key for entry in store.list(job_uid)])


def _at_once(attempt: Callable[[], Result]) -> Result:
    """Try once: a store that fails ends the bench."""
    return attempt()
