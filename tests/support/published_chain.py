"""A job with a publisher and a follower, which are compared with whole exports."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

from cpr_contract.spec import PublishSpec
from cpr_trainer.publish.publisher import Publisher
from cprjob_serving import Follower
from cprjob_serving.chain import Entry
from support.memory_store import MemoryStore
from support.published_job import EVERY_STEP, PublishedJob, files_of


class StoreSource:
    """A store as a source of a follower."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def open(self, key: str) -> IO[bytes] | None:
        content = self.store.objects.get(key)
        return None if content is None else io.BytesIO(content)


class Case:
    """A job, its publisher, and a follower."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, MemoryStore()
        self.job = PublishedJob(MemoryStore())
        self.follower = Follower("memory:", folder / "followed", source=StoreSource(self.target))
        self.exports = 0
        self.publisher: Publisher | None = None

    def publish(self, spec: PublishSpec = EVERY_STEP) -> Entry:
        """Publish the newest anchor by the same process."""
        if self.publisher is None:
            self.publisher = self.job.publisher(self.target, self.folder / "scratch", spec)
        assert self.publisher.look()
        assert self.publisher.last is not None
        return self.publisher.last

    def check(self) -> None:
        """The follower's model is that of the newest anchor."""
        self.follower.update()
        assert self.follower.model.about["anchor"] == self.job.anchors[-1].key
        self.exports += 1
        whole = self.job.export(self.job.anchors[-1].key, self.folder / f"export-{self.exports}")
        assert files_of(self.follower.model.folder) == whole
