"""How far the connection to a shard is, and what the shard has said of its saves."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LinkState(enum.Enum):
    """How far a connection is."""

    DOWN = enum.auto()
    CONNECTING = enum.auto()
    GREETING = enum.auto()
    PROVED = enum.auto()  # the shard's proof holds, ours is on its way
    JOINED = enum.auto()  # both sides proved the key; the shard does not serve this generation (yet)
    REPLAYING = enum.auto()  # the shard serves it, and is sent what it does not have before anything else
    READY = enum.auto()


#: Both sides proved the key.
CONNECTED = frozenset({LinkState.JOINED, LinkState.REPLAYING, LinkState.READY})


@dataclass(frozen=True, slots=True)
class SaveState:
    """A shard's newest committed save, -1 while unknown, and the step of the cut that it gave up last, 0 for none.

    `step` is the last one of this trainer's rank that the save holds. `incarnation` of the shard said so.
    """

    step: int = -1
    samples: int = -1
    given_up_step: int = 0
    incarnation: int = -1
