"""The data pins of a job that follows its data, read from its store, and the order of samples that they give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cpr_contract.pinned_data import DataPin
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.data_pins import PinChain
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import indices_of_manifest
from cpr_trainer.data.reader import layout_of
from cpr_trainer.data.stream_order import StreamOrder
from cpr_trainer.store import open_store
from cpr_trainer.trainer.followed_data import FollowedData


class Pins:
    """All pins of a job in its store; `order` has also the segments that the job drops."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._chain = _chain_of(job)
        self.all: list[DataPin] = []
        self.files: list[Index] = []
        self.order = StreamOrder(job.data)

    def read(self) -> int:
        """Read new pins; return the number of rows in all."""
        for pin in self._chain.read():
            own = pin.segments[-1]
            files = indices_of_manifest(own.files)
            self.order = self.order.followed_by(layout_of(files) if own.rows else None, own.voids)
            self.order = self.order.ended() if pin.end else self.order
            self.files += files
            self.all.append(pin)
        return sum(block.rows for index in self.files for block in index.blocks)

    def end(self) -> None:
        """Pin the end, with voids that fill the last batch."""
        followed = FollowedData(self._job.data, self._job.job_uid, open_store(self._job.snapshots.store, None, None))
        followed.read()
        followed.pin([], -followed.order.known_samples % self._job.data.batch_size, end=True)
        self.read()

    def trained(self) -> tuple[Counter[int], int]:
        """Return how often each row of the pinned files is trained, and the number of void samples."""
        rows: Counter[int] = Counter()
        for step in range(1, self.order.steps + 1):
            rows.update(self.order.indices_of(self.order.slice_of(step)).tolist())
        return rows, self.order.known_samples - rows.total()

    def copy_to(self, job: JobSpec) -> None:
        """Write the pins for a job that has no anchor yet, and needs the first segment, too."""
        chain = _chain_of(job)
        for pin in self.all:
            chain.write(replace(pin, previous=chain.digest, first_needed=0))


def _chain_of(job: JobSpec) -> PinChain:
    return PinChain(open_store(job.snapshots.store, None, None), job.job_uid)
