"""The state from which the next process of a shard's server continues exactly, in memory that outlives a process.

The rows and the redo record belong to the arena. The control block lies before them: words for the supervisor, and two
copies of the resume state, so that one is valid while the other is written. For trainers a new process is a broken
connection, after which they push again what was not acknowledged. A save in progress is lost.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from time import monotonic
from typing import Self

import numpy as np

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.limits import MAX_TRAINERS
from cpr_contract.manifests import RestoreRecord, RowUpdates
from cpr_contract.reports import SaveRef
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.restore.restorer import Restored
from cpr_trainer.checkpoint.write.checkpointer import ShardCheckpointer
from cpr_trainer.embedding.memory import Memory
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.exchange.frames import HEADER_BYTES, Header
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Cuts, Losses, Progress, ReplayBarrier

#: Rises with any change of the memory's layout: a container that restarts may have another image.
_FORM = 5
#: The size of one copy, far more than any state takes; memory that is never touched costs nothing.
_COPY_BYTES = 16 << 20
_VALID, _FIRST = range(FIRST_FREE_WORD, FIRST_FREE_WORD + 2)
_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Account:
    """The part of the resume state that changes seldom: all but the counts of pushes.

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
    replay_barrier: ReplayBarrier
    in_order: bool
    epoch: int
    newest_save: SaveRef | None
    saved_steps: tuple[int, ...]
    given_up_step: int
    links: tuple[Link, ...]
    top: str
    restore_record: RestoreRecord | None
    saving: str
    saving_step: int


@dataclass(frozen=True, slots=True)
class ResumeState:
    """An account, and what every push changes: its number in the redo record, and the counts of all ranks.

    order, replayed, applied, pushed: see `Progress`.
    """

    account: Account
    push: int
    order: int
    replayed: int
    applied: tuple[int, ...]
    pushed: tuple[int, ...]


class ShardControlBlock(ControlBlock):
    """The control block of a job's shard, with the resume state of its server.

    `newest_trainers`, int64 [MAX_TRAINERS], has the highest incarnation of each rank that joined; the server sets it.
    `newest_shards`, int64 [S], has that of each shard that connected for its parity, or that a roster named.
    """

    def __init__(self, memory: Memory, job: JobSpec) -> None:
        """Take the control block from the beginning of `memory`."""
        owner = f"{_FORM} {job.job_uid} {layout_hash(job.model)} {job.shards}"
        super().__init__(memory.array((_FIRST + 4,), np.int64), owner)
        self.newest_trainers: Ints = memory.array((MAX_TRAINERS,), np.int64)
        self.newest_shards: Ints = memory.array((job.shards,), np.int64)
        self._copies = [memory.array((_COPY_BYTES,), np.uint8) for _ in range(2)]
        self._written: Account | None = None
        self._text = b""

    @classmethod
    def new(cls, memory: Memory, job: JobSpec) -> Self:
        """Return the control block of new memory, and write its owner."""
        block = cls(memory, job)
        block.initialise()
        return block

    @property
    def usable(self) -> bool:
        """True if the memory is this job's, and the state in it is whole."""
        if not super().usable:
            return False
        try:
            self.read()
        except (ValueError, struct.error):
            return False
        return True

    def write(self, state: ResumeState) -> None:
        """Replace the state. Raises OverflowError if it is too long."""
        if state.account != self._written:
            self._text, self._written = to_json(state.account).encode(), state.account
        counts = (state.push, state.order, state.replayed, *state.applied, *state.pushed)
        data = struct.pack(f"<q{len(counts)}q", len(state.applied), *counts) + self._text
        if len(data) > _COPY_BYTES:
            raise OverflowError(f"the resume state takes {len(data)} bytes, and there are {_COPY_BYTES}")
        free = 1 if self._words[_VALID] == 2 else 2  # noqa: PLR2004 -- the two copies are 1 and 2; 0 is none
        self._copies[free - 1][: len(data)] = np.frombuffer(data, np.uint8)
        at = _FIRST + 2 * (free - 1)
        self._words[at], self._words[at + 1] = len(data), zlib.crc32(data)
        self._words[_VALID] = free

    def forget(self) -> None:
        """Invalidate the state: the rows are about to be loaded."""
        self._words[_VALID] = 0

    def read(self) -> ResumeState | None:
        """Return the state; None if there is none. Raises ValueError if it is damaged."""
        valid = int(self._words[_VALID])
        if valid == 0:
            return None
        at = _FIRST + 2 * (valid - 1)
        data = self._copies[valid - 1][: int(self._words[at])].tobytes()
        if zlib.crc32(data) != int(self._words[at + 1]):
            raise ValueError("the resume state has another checksum")
        (ranks,) = _COUNT.unpack_from(data)
        push, order, replayed, *counts = struct.unpack_from(f"<{3 + 2 * ranks}q", data, _COUNT.size)
        try:
            account = from_json(Account, data[_COUNT.size * (4 + 2 * ranks) :])
        except ContractError as error:
            raise ValueError(str(error)) from error
        return ResumeState(account, push, order, replayed, tuple(counts[:ranks]), tuple(counts[ranks:]))


def resume_state_of(service: Service, saving: ShardCheckpointer, progress: Progress, restored: Restored) -> ResumeState:
    """Return all that the next process needs."""
    links, top, record = saving.start_arguments
    kind, step = saving.in_progress
    account = Account(
        generation=progress.generation,
        restored=restored,
        losses=progress.losses,
        lost_row_updates=progress.row_updates.lost,
        exact=progress.row_updates.exact,
        total_samples=progress.total_samples,
        cuts=progress.cuts,
        dirty=progress.dirty,
        replay_barrier=progress.replay_barrier,
        in_order=progress.in_order,
        epoch=service.arena.epochs.now,
        newest_save=service.newest_save,
        saved_steps=service.saved_steps,
        given_up_step=service.given_up_step,
        links=links,
        top=top,
        restore_record=record,
        saving=kind,
        saving_step=step,
    )
    number = service.arena.redo.number
    return ResumeState(
        account, number, progress.order, progress.replayed, progress.applied, progress.row_updates.pushed
    )


def resume(state: ResumeState, service: Service, saving: ShardCheckpointer) -> None:
    """Serve the rows of the last process, after completing its last push."""
    account, arena = state.account, service.arena
    arena.epochs.now = account.epoch
    arena.epochs.release_all()
    pushes: list[Header] = []
    if arena.redo.number != state.push:
        arena.reapply_last_push()
        note = arena.redo.note
        pushes = [Header.unpack(note[at : at + HEADER_BYTES]) for at in range(0, len(note), HEADER_BYTES)]
    service.newest_save, service.saved_steps = account.newest_save, account.saved_steps
    service.given_up_step = account.given_up_step
    saving.start(account.links, account.top, monotonic(), account.restore_record, counted=False)
    progress = Progress(
        account.generation,
        state.applied,
        account.losses,
        RowUpdates(state.pushed, account.lost_row_updates, account.exact),
        total_samples=account.total_samples,
        cuts=account.cuts,
        dirty=account.dirty,
        replay_barrier=account.replay_barrier,
        replayed=state.replayed,
        order=state.order,
        in_order=account.in_order,
    )
    service.resume(progress, pushes)
    _retake_cut(account, service, saving, progress)


def _retake_cut(account: Account, service: Service, saving: ShardCheckpointer, progress: Progress) -> None:
    """Take again the cut that the last process was saving, or give it up if the rows have changed since."""
    if account.saving not in {"Anchor", "Flush"} or saving.unsaved:
        return
    if account.saving == "Anchor":
        mark = service.mark(progress)
        if not progress.dirty and mark.step == account.saving_step:
            saving.save("Anchor", mark)
            return
        service.given_up_step = account.saving_step
    progress.dirty = True
