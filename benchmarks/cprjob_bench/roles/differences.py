"""The arithmetic of ECRec's parity: sums of floats, to which differences of rows and optimizer state are added.

A row of parity is the sum of one row of each of k shards, and its state the sum of their states. Each step adds its
change of a row to the parity, too (arXiv 2104.01981, section 3). Sums are rounded, so a decoded row is not exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.parity.coding import Parts
from cpr_trainer.parity.messages import Shapes, document_of, pack

_ALIGNMENT = 8
#: The push of a difference, as rank and step.
Push = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """The change of one segment of a part by a push. at: uint32 [n], distinct. rows: [n, D]. state: [n, W]."""

    at: NDArray[np.uint32]
    rows: Floats
    state: Floats


#: One for each segment.
Differences = tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    rank: int
    step: int
    counts: tuple[int, ...]


class Before:
    """The values of slots of an arena before a push. slots: int64 [k], ascending if there are several segments."""

    def __init__(self, arena: Arena, parts: Parts, slots: Ints) -> None:
        self._arena = arena
        self._parts = parts
        self._bounds = arena.bounds(slots)
        self._at = [
            segment.within(slots[self._bounds[place] : self._bounds[place + 1]])
            for place, segment in enumerate(arena.segments)
        ]
        self._held = self._read()

    def differences(self) -> list[Differences]:
        """Return the changes since then, by part."""
        found = [list[Difference]() for _ in range(self._parts.data_shards)]
        pairs = zip(self._at, self._parts.sizes, self._read(), self._held, strict=True)
        for at, size, (rows, state), (rows_before, state_before) in pairs:
            changes, state_changes, owners = rows - rows_before, state - state_before, at // size
            for part, mine in enumerate(found):
                which = owners == part
                places = (at[which] - part * size).astype(np.uint32)
                mine.append(Difference(places, changes[which], state_changes[which]))
        return [tuple(each) for each in found]

    def _read(self) -> list[tuple[Floats, Floats]]:
        pairs = zip(self._arena.segments, self._at, strict=True)
        return [(segment.read(at), segment.state.take(at, axis=0)) for segment, at in pairs]


class Sums:
    """The parity of one stripe. Staged differences are added when their push is committed. Single-threaded."""

    def __init__(self, shapes: Shapes) -> None:
        """Start with zeros, in float32. shapes: those of a part, by segment."""
        self.sums = [
            (np.zeros((each.rows, each.dim), np.float32), np.zeros((each.rows, each.width), np.float32))
            for each in shapes
        ]
        self._staged: dict[Push, dict[int, Differences]] = {}

    @property
    def nbytes(self) -> int:
        """The size of the sums."""
        return sum(rows.nbytes + state.nbytes for rows, state in self.sums)

    def stage(self, push: Push, member: int, differences: Differences) -> None:
        """Keep the differences of a push to a member's part. The call is idempotent."""
        self._staged.setdefault(push, {})[member] = differences

    def commit(self, push: Push) -> None:
        """Add the staged differences of a push."""
        for differences in self._staged.pop(push, {}).values():
            for (rows, state), each in zip(self.sums, differences, strict=True):
                rows[each.at] += each.rows
                state[each.at] += each.state


def pack_differences(generation: int, push: Push, differences: Differences) -> tuple[Header, list[Any]]:
    """Return the frame for the holder of a part."""
    head = _Head(*push, tuple(len(each.at) for each in differences))
    arrays = [array for each in differences for array in (each.at, each.rows, each.state)]
    return pack(Operation.FLUSH, generation, head, *arrays)


def unpack_differences(frame: Frame, shapes: Shapes) -> tuple[Push, Differences]:
    """Return the push and the differences in a holder's frame; arrays are copies. Raises FrameError."""
    head, count = document_of(_Head, frame), frame.header.count
    payload, first = bytes(frame.payload[count + -count % _ALIGNMENT :]), 0
    found = list[Difference]()
    for rows, (_, dim, width, _) in zip(head.counts, shapes, strict=True):
        arrays = list[NDArray[Any]]()
        for dtype, values in ((np.uint32, 1), (np.float32, dim), (np.float32, width)):
            end = first + 4 * rows * values
            if end > len(payload):
                raise FrameError(f"the differences exceed the payload of {len(payload)} bytes")
            arrays.append(np.frombuffer(payload, dtype, rows * values, first))
            first = end + -end % _ALIGNMENT
        at, changes, state = arrays
        found.append(Difference(at, changes.reshape(rows, dim), state.reshape(rows, width)))
    return (head.rank, head.step), tuple(found)
