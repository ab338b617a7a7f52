"""A simulated trainer's knowledge of data that arrives, by the rules of `trainer/known_data.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cpr_trainer.data.files import Index
from cpr_trainer.store import StoreError
from cpr_trainer.trainer.followed_data import DataLooks
from simulation.data_plane.anchors import AnchorWriter
from simulation.data_plane.arriving_data import ArrivingData
from simulation.data_plane.groups import GroupBrokenError

if TYPE_CHECKING:
    from simulation.data_plane.trainers import Trainer

T = TypeVar("T")

#: The part of a leader's steps beside which it looks for files; in `LookThread` another thread does.
_LOOKS = 0.1
_LOOK_EVERY_S = 0.1


class KnownData:
    """The pins that a trainer has read, and its looks while it leads."""

    def __init__(self, trainer: Trainer, arriving: ArrivingData) -> None:
        self.followed = arriving.reader(trainer.cluster.store)
        self._trainer, self._arriving, self._group = trainer, arriving, trainer.cluster.group
        self._files: list[Index] = []
        self._looks: DataLooks | None = None
        self._anchors: AnchorWriter | None = None

    def on_group_formed(self, epoch: int) -> None:
        """Read the pins up to the one that the leader names. The first leader looks until there is one.

        A group of the product has one roster. Here it may come while the members wait for the leader that it names.
        """
        while not self._group.pin:
            if self._trainer.pod.leads:
                self._read(None)
                if not self.followed.number:
                    self._look(waits=True)
                self._check(epoch)
                self._group.pin = self._group.pin or self.followed.number
            self._trainer.poll_interrupts()
            self._check(epoch)
            self._trainer.cluster.scheduler.sleep(_LOOK_EVERY_S)
        self._read(self._group.pin)

    def grows(self, step: int, dense: int, *, saved: bool) -> bool:
        """At the last step that can be trained: return whether the leader has named a later pin, and read up to it.

        saved: all shards have saved this step, after which the dense state is `dense`.
        """
        probes = self._trainer.cluster.probes
        if saved and self._trainer.pod.leads and self._retry_store(lambda: self._writer.commit(step, dense)):
            epoch = self._group.epoch
            self._look(waits=True)
            assert self._looks is not None, "it looks"
            if self._looks.followed.number > self.followed.number and self._group.epoch == epoch:
                self._group.pin = self._looks.followed.number
        if self._group.pin <= self.followed.number:
            return False
        self._read(self._group.pin)
        probes["a later pin was named"] += 1
        return True

    def check(self, step: int) -> None:
        """Raise ValueError if a step is not known, or not any more."""
        self.followed.order.slice_of(step)

    @property
    def _writer(self) -> AnchorWriter:
        if self._anchors is None or self._anchors.generation != self._trainer.generation:
            self._anchors = AnchorWriter(self._trainer)
        return self._anchors

    def _oldest_samples(self) -> int:
        return 0 if self._anchors is None else self._anchors.oldest_step * self._trainer.workload.job.data.batch_size

    def take(self, step: int) -> None:
        """Take the rows of a step."""
        trainer = self._trainer
        self._arriving.take(step, trainer.rank, trainer.workload.job.trainers, self.followed.order, self._files)
        if trainer.pod.leads and trainer.cluster.rng.random() < _LOOKS:
            self._look(waits=False)

    def _look(self, *, waits: bool) -> None:
        trainer = self._trainer
        if self._looks is None:
            self._looks = self._arriving.looks(trainer.cluster.store, self._oldest_samples)
        looks = self._looks
        self._arriving.arrive(looks.followed, waits=waits)
        stands = waits and looks.followed.number == self.followed.number
        now_s = self._arriving.now_s(looks.followed)
        pin = self._retry_store(lambda: looks.look(waits=stands, now_s=now_s))
        if pin is not None:
            trainer.cluster.probes["a batch was filled by voids"] += bool(pin.segments[-1].voids)
        trainer.cluster.scheduler.sleep(_LOOK_EVERY_S)

    def _read(self, up_to: int | None) -> None:
        self._files += self._retry_store(lambda: self.followed.read(up_to))
        if self.followed.order.has_ended:
            self._trainer.exchange.end_data(self.followed.order.total_samples)

    def _retry_store(self, call: Callable[[], T]) -> T:
        """Return the result of a call, repeated while the store fails."""
        while True:
            self._trainer.poll_interrupts()
            try:
                return call()
            except StoreError:
                self._trainer.cluster.scheduler.sleep(_LOOK_EVERY_S)

    def _check(self, epoch: int) -> None:
        if self._group.epoch != epoch:
            raise GroupBrokenError
