"""What a trainer's supervisor sees of the memory that outlives the trainer: whose it is, and whether it can be used."""

from __future__ import annotations

import os

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock

_SUPERVISOR, _VALID, _GENERATION, _STARTED = range(FIRST_FREE_WORD, FIRST_FREE_WORD + 4)
#: Besides the copies, which count from 1: nothing was kept yet, or what was kept is being replaced as a whole.
NOTHING, CHANGING = 0, -1


class ResumeHeader(ControlBlock):
    """A page of one trainer's file."""

    def __init__(self, file: ResumeFile, job: JobSpec) -> None:
        super().__init__(file.words, f"trainer {job.job_uid} {layout_hash(job.model)} {job.shards} {job.trainers}")
        self.file = file

    @classmethod
    def new(cls, job: JobSpec) -> ResumeHeader:
        """Return the page of a new file, and say in it whose it is. Raises OSError."""
        header = cls(ResumeFile.new(), job)
        header.initialise()
        header._words[_SUPERVISOR] = os.getpid()
        return header

    @property
    def supervisor(self) -> int:
        """The pid of the process that made it."""
        return int(self._words[_SUPERVISOR])

    @property
    def usable(self) -> bool:
        """Whether the next process may go on with what is kept, or begin without it because nothing is yet.

        Not if a state was kept, and the last process had begun to replace it: what the shards were sent is unknown.
        """
        return super().usable and self.valid != CHANGING

    @property
    def valid(self) -> int:
        """Which copy of the state is valid, or one of the above."""
        return int(self._words[_VALID])

    @valid.setter
    def valid(self, copy: int) -> None:
        self._words[_VALID] = copy

    def holds(self, generation: int) -> bool:
        """Whether there is a state of this generation."""
        return self.valid > NOTHING and int(self._words[_GENERATION]) == generation

    def reset(self, generation: int) -> None:
        """Keep nothing: a generation begins."""
        self.valid = NOTHING
        self._words[_STARTED] = 0
        self._words[_GENERATION] = generation

    def invalidate(self) -> None:
        """The state is about to be replaced: what was kept is true no more."""
        if self.valid > NOTHING:
            self.valid = CHANGING

    @property
    def samples_started(self) -> int:
        """What any shard can have been sent in this generation."""
        return int(self._words[_STARTED])

    @samples_started.setter
    def samples_started(self, samples: int) -> None:
        self._words[_STARTED] = samples
