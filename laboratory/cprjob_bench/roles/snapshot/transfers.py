"""How fast a shard is saved and restored while nobody trains, beside the raw client with as many bytes.

Contenders take turns, and who begins changes from repeat to repeat: what a store or a disk still does for the one
before is nobody's disadvantage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.checkpoint.write.save import SavedShard
from cpr_trainer.errors import TrainerError
from cpr_trainer.store import in_parallel
from cpr_trainer.tables.arena import Home
from cprjob_bench.documents.snapshot import Contest
from cprjob_bench.roles.snapshot.raw import RawClient
from cprjob_bench.roles.snapshot.saves import BenchShard

#: Objects of the raw client are as large as parts of a large shard.
_RAW_BYTES = 8 << 20


class WrongRestoreError(TrainerError):
    """What was restored is not what was saved."""

    reason = "WrongRestore"

    def __init__(self) -> None:
        super().__init__("The restored bytes are not those that were saved.", "Report it; the figures mean nothing.")


class Transfers:
    """Saves a shard whole and restores it into another arena, again and again; keeps the times of both."""

    def __init__(self, shard: BenchShard, raw: RawClient) -> None:
        self.saves: list[Contest] = []
        self.restores: list[Contest] = []
        self.saved_bytes = 0
        self._shard = shard
        arena = shard.home.arena
        arena.epochs.note(np.arange(len(arena.rows)))
        memory = np.random.default_rng(0).integers(256, size=shard.table_bytes, dtype=np.uint8)
        self._raw = _RawCopy(raw, f"{shard.job.job_uid}-raw", memory.data)
        self._room = memory[::-1].copy()

    def repeat(self) -> None:
        """Save, restore, compare, delete. Raises WrongRestoreError, StoreError, OSError."""
        raw_first = len(self.saves) % 2 > 0
        saved: list[SavedShard] = []
        self.saves.append(_contest(lambda: saved.append(self._save()), self._raw.write, raw_first=raw_first))
        (save,) = saved
        candidate = Candidate("Save", save.manifest.layout, save.manifest.step, (save.ref,))
        home, room = Home.of(self._shard.job, self._shard.home.placement, 0), self._room.data
        # Both read into memory that the system has given them already: what that takes is no matter of the store.
        home.arena.rows.fill(0.0)
        self._room.fill(0)
        self.restores.append(
            _contest(
                lambda: load_shard(self._shard.store, candidate, home),
                lambda: self._raw.read(room),
                raw_first=raw_first,
            )
        )
        if not np.array_equal(home.arena.rows, self._shard.home.arena.rows) or room != self._raw.memory:
            raise WrongRestoreError
        self.saved_bytes = sum(self._shard.stored().values())
        self._shard.clear()

    def _save(self) -> SavedShard:
        return self._shard.save(self._shard.home.arena.capture_changes(0), len(self.saves) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class _RawCopy:
    """Some memory as objects of the raw client, whose keys begin with `name`."""

    client: RawClient
    name: str
    memory: memoryview

    def write(self) -> None:
        in_parallel(lambda first: self.client.put(self._key(first), self.memory[_part(first)]), self._firsts())

    def read(self, room: memoryview) -> None:
        in_parallel(lambda first: self.client.get_into(self._key(first), room[_part(first)]), self._firsts())

    def _firsts(self) -> range:
        return range(0, self.memory.nbytes, _RAW_BYTES)

    def _key(self, first: int) -> str:
        return f"{self.name}-{first:012d}"


def _part(first: int) -> slice:
    return slice(first, first + _RAW_BYTES)


def _contest(engine: Callable[[], object], raw: Callable[[], object], *, raw_first: bool) -> Contest:
    if raw_first:
        raw_wall_s, raw_cpu_s = _time(raw)
        return Contest(*_time(engine), raw_wall_s, raw_cpu_s)
    return Contest(*_time(engine), *_time(raw))


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that passed, and those that this process' threads took of the processors."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s
