"""What a server of a shard leaves to the next life, in memory that outlives it: all that it needs to go on exactly.

The rows and the redo record are the arena's. Beside them lies this page: words that the supervisor reads, and two
copies of the rest, of which one is valid while the other is written.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.limits import MAX_TRAINERS
from cpr_contract.manifests import Origin
from cpr_contract.reports import SaveRef
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.restore.restorer import Restored
from cpr_trainer.checkpoint.write.decisions import Cuts
from cpr_trainer.embedding.memory import Memory
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock
from cpr_trainer.shard.losses import Losses
from cpr_trainer.shard.replay_barrier import ReplayBarrier

#: Rises with any change of what lies where in the memory: a container that begins again may be of another image.
_FORM = 1
#: Room for one copy, far more than any account takes; memory that is not touched does not count.
_COPY_BYTES = 16 << 20
_VALID, _FIRST = range(FIRST_FREE_WORD, FIRST_FREE_WORD + 2)
_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Account:
    """What changes seldom: where the rows stand but for the counts, and what the next save stands on.

    `epoch` is the arena's. `saving` and `saving_step` are those of the save that is not committed; empty and 0: none.
    """

    generation: int
    restored: Restored
    losses: Losses
    lost_row_updates: int
    exact: bool
    total_samples: int
    cuts: Cuts
    dirty: bool
    catch_up: ReplayBarrier
    in_order: bool
    epoch: int
    newest_save: SaveRef | None
    saved_steps: tuple[int, ...]
    given_up_step: int
    links: tuple[Link, ...]
    top: str
    origin: Origin | None
    saving: str
    saving_step: int


@dataclass(frozen=True, slots=True)
class Kept:
    """An account, and what every push changes: its number in the redo record, and the counts of all ranks.

    order, replayed, applied, pushed: see `Progress`.
    """

    account: Account
    push: int
    order: int
    replayed: int
    applied: tuple[int, ...]
    pushed: tuple[int, ...]


class Page(ControlBlock):
    """The page of a job's shard. A life is one server of an incarnation, a turn one of its main loop.

    `newest_trainers`, int64 [MAX_TRAINERS], is filled in by the server: the highest incarnation of each rank
    that joined.
    """

    def __init__(self, memory: Memory, job: JobSpec) -> None:
        """Take the page from the beginning of `memory`."""
        owner = f"{_FORM} {job.job_uid} {layout_hash(job.model)} {job.shards}"
        super().__init__(memory.array((_FIRST + 4,), np.int64), owner)
        self.newest_trainers: Ints = memory.array((MAX_TRAINERS,), np.int64)
        self._copies = [memory.array((_COPY_BYTES,), np.uint8) for _ in range(2)]
        self._written: Account | None = None
        self._text = b""

    @classmethod
    def new(cls, memory: Memory, job: JobSpec) -> Self:
        """Return the page of memory that is new, and say in it whose it is."""
        page = cls(memory, job)
        page.initialise()
        return page

    @property
    def usable(self) -> bool:
        """Whether the memory is this job's, and what is kept in it is whole."""
        if not super().usable:
            return False
        try:
            self.read()
        except (ValueError, struct.error):
            return False
        return True

    def write(self, kept: Kept) -> None:
        """Keep this in place of what was kept before. Raises OverflowError if it is too long."""
        if kept.account != self._written:
            self._text, self._written = to_json(kept.account).encode(), kept.account
        counts = (kept.push, kept.order, kept.replayed, *kept.applied, *kept.pushed)
        data = struct.pack(f"<q{len(counts)}q", len(kept.applied), *counts) + self._text
        if len(data) > _COPY_BYTES:
            raise OverflowError(f"{len(data)} bytes are to be kept, and there is room for {_COPY_BYTES}")
        free = 1 if self._words[_VALID] == 2 else 2  # noqa: PLR2004 -- the two copies are 1 and 2; 0 is none
        self._copies[free - 1][: len(data)] = np.frombuffer(data, np.uint8)
        at = _FIRST + 2 * (free - 1)
        self._words[at], self._words[at + 1] = len(data), zlib.crc32(data)
        self._words[_VALID] = free

    def forget(self) -> None:
        """The rows are about to be loaded: nothing that was kept is true any more."""
        self._words[_VALID] = 0

    def read(self) -> Kept | None:
        """Return what is kept; None if nothing is. Raises ValueError if it is damaged."""
        valid = int(self._words[_VALID])
        if valid == 0:
            return None
        at = _FIRST + 2 * (valid - 1)
        data = self._copies[valid - 1][: int(self._words[at])].tobytes()
        if zlib.crc32(data) != int(self._words[at + 1]):
            raise ValueError("what is kept has another checksum")
        (ranks,) = _COUNT.unpack_from(data)
        push, order, replayed, *counts = struct.unpack_from(f"<{3 + 2 * ranks}q", data, _COUNT.size)
        try:
            account = from_json(Account, data[_COUNT.size * (4 + 2 * ranks) :])
        except ContractError as error:
            raise ValueError(str(error)) from error
        return Kept(account, push, order, replayed, tuple(counts[:ranks]), tuple(counts[ranks:]))
