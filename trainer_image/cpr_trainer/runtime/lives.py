"""The first words of memory that outlives a process: whose it is, and which process lives."""

from __future__ import annotations

import hashlib

from cpr_trainer.arrays import Ints

_OWNER, _LIFE, _TURNS = range(3)
#: The first word that is free for others.
FREE = 3


class Lives:
    """What a keeper and the processes that it begins tell each other. words: int64, zero where the memory is new.

    owner: what tells the memory from that of others.
    """

    def __init__(self, words: Ints, owner: str) -> None:
        self._words = words
        self._owner = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:7], "little")

    def own(self) -> None:
        """Say whose the memory is: it is new."""
        self._words[_OWNER] = self._owner

    @property
    def fits(self) -> bool:
        """Whether another process may go on with what is kept: the memory is the owner's, and what else a page asks."""
        return int(self._words[_OWNER]) == self._owner

    @property
    def life(self) -> int:
        """Counts the processes, from 1; 0 before the first."""
        return int(self._words[_LIFE])

    def begin_life(self) -> None:
        """A process begins."""
        self._words[_TURNS] = 0
        self._words[_LIFE] += 1

    @property
    def turns(self) -> int:
        """Rises while the present process is alive; 0 while it starts."""
        return int(self._words[_TURNS])

    def turn(self) -> None:
        """Show that the present process is alive."""
        self._words[_TURNS] += 1
