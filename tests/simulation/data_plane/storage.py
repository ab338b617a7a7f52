"""A simulated store: requests are late or fail, answers may be lost, and objects may be damaged.

The store executes a request even if its sender has died since. Listings have an unfinished object for each write, as
those of a folder do, and that of a writer that died stays.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from cpr_trainer.store import Buffer, Entry, MissingError, Received, StoreError, StoreUnreachableError, Throttle
from cpr_trainer.store.transfers import flat
from simulation.data_plane.clock import Scheduler
from support.memory_store import MemoryStore

Result = TypeVar("Result")


class SimulatedStore(MemoryStore):
    """`probes` counts rare states. Requests fail until `down_until`; `slow` and `loses` are chances of a request."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, probes: Counter[str]) -> None:
        super().__init__()
        self.down_until = 0.0
        self.slow = self.loses = 0.0
        self._writes = 0
        self._scheduler = scheduler
        self._rng = rng
        self._probes = probes

    def put(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        if_absent: bool = False,
        throttle: Throttle | None = None,
    ) -> int:
        views = flat(data)
        sent, process = b"".join(views), self._scheduler.task.process
        self._writes += 1
        unfinished = f"{key}.writing-{self._writes:08x}"
        self.objects[unfinished] = sent[: len(sent) // 2]

        def finish() -> int:
            if unfinished not in self.objects:  # a sweep has deleted it with its save, as in a folder
                self._probes["an unfinished object was deleted under its writer"] += 1
                raise MissingError(key)
            return super(SimulatedStore, self).put(key, sent, if_absent=if_absent, throttle=throttle)

        try:
            crc = self._request(finish)
        finally:
            if process.dead:
                self._probes["a killed process left an unfinished object"] += 1
            else:
                self.objects.pop(unfinished, None)
        assert b"".join(views) == sent, f"{key} changed while it was sent"
        return crc

    def get(self, key: str) -> bytes:
        return self._request(lambda: super(SimulatedStore, self).get(key))

    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        task = self._scheduler.current

        def read() -> Received:
            if task is not None and task.process.dead:  # the next process of its pod may have the same memory
                return self.without_faults().get_into(key, [memoryview(bytearray(each.nbytes)) for each in buffers])
            return self.without_faults().get_into(key, buffers)

        return self._request(read)

    def list(self, prefix: str) -> tuple[Entry, ...]:
        return self._request(lambda: super(SimulatedStore, self).list(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        self._request(lambda: super(SimulatedStore, self).delete(keys))

    def without_faults(self) -> MemoryStore:
        """Return a store of the same objects that answers at once."""
        store = MemoryStore()
        store.objects, store.modified_s = self.objects, self.modified_s
        return store

    def damage(self, key: str) -> None:
        """Change, cut or lose an object. A document that is changed cannot be read any more."""
        data = self.objects[key]
        match self._rng.randrange(3) if data else 2:
            case 0:
                at = 0 if key.endswith(".json") else self._rng.randrange(len(data))
                self.objects[key] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            case 1:
                self.objects[key] = data[: len(data) // 2]
            case _:
                del self.objects[key]

    def _request(self, answer: Callable[[], Result]) -> Result:
        """Let a request travel, be done, and its answer travel back."""
        scheduler, rng = self._scheduler, self._rng
        task = scheduler.task
        found: list[Result | StoreError] = []

        def done() -> None:
            if task.process.dead:
                self._probes["a request was done after its sender had died"] += 1
            try:
                found.append(answer())
            except StoreError as error:
                found.append(error)
            scheduler.wake(task)

        if scheduler.now < self.down_until:
            scheduler.sleep(rng.uniform(0.01, 0.2))
            raise _unreachable()
        late = rng.random() < self.slow
        scheduler.after(rng.uniform(0.5, 5.0) if late else rng.uniform(0.0005, 0.01), done)
        while not found:
            scheduler.park()
        scheduler.sleep(rng.uniform(0.0, 0.005))
        if rng.random() < self.loses:
            self._probes["an answer of the store was lost"] += 1
            raise _unreachable()
        (result,) = found
        if isinstance(result, StoreError):
            raise result
        return result


def _unreachable() -> StoreUnreachableError:
    return StoreUnreachableError("The store does not answer.", "Wait.")
