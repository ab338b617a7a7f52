"""The shards that a lost one is computed from, over one connection to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from cpr_trainer.exchange.frames import Operation
from cpr_trainer.parity.dialogue import Dialogue
from cpr_trainer.parity.flush import Moment, Point
from cpr_trainer.parity.images import Image
from cpr_trainer.parity.messages import (
    Read,
    Rows,
    Shapes,
    Stand,
    Standing,
    document_of,
    pack,
    unpack_image,
)
from cpr_trainer.parity.ring import Ring


class Neighbours:
    """Those of shard `index`. `connect` opens a dialogue with a shard. Everything raises as `Dialogue` does."""

    def __init__(
        self, ring: Ring, index: int, shapes: Shapes, generation: int, connect: Callable[[int], Dialogue]
    ) -> None:
        self._ring = ring
        self._index = index
        self._shapes = shapes
        self._generation = generation
        self._connect = connect
        self._open: dict[int, Dialogue] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stack.close()

    def standings(self, moment: Moment | None = None) -> tuple[Standing, ...]:
        """Return where the shard's parts stand in their parities, part after part.

        With a `moment` they are taken back to there first. Who is asked answers no earlier process of the shard again.
        """
        question = pack(Operation.STAND, self._generation, Stand(moment))
        holders = self._ring.holders(self._index)
        return tuple(document_of(Standing, self._dialogue(each).ask(*question, Operation.STANDING)) for each in holders)

    def stripe(self, part: int) -> StripeOf:
        """Return the stripe in which a part of the shard is."""
        return StripeOf(self, self._ring.holder(self._index, part), self._ring)

    def rows(self, shard: int, asked: Read) -> tuple[Rows, Image | None]:
        """Return what a shard answers to a question for rows."""
        frame = self._dialogue(shard).ask(*pack(Operation.READ, self._generation, asked), Operation.ROWS)
        answer = document_of(Rows, frame)
        if not answer.known:
            return answer, None
        return answer, unpack_image(frame, asked.end - asked.first, self._shapes[asked.segment])

    def _dialogue(self, shard: int) -> Dialogue:
        if shard not in self._open:
            self._open[shard] = self._stack.enter_context(self._connect(shard))
        return self._open[shard]


class StripeOf:
    """A stripe, as `decode` asks for it."""

    def __init__(self, neighbours: Neighbours, holder: int, ring: Ring) -> None:
        self._neighbours = neighbours
        self._holder = holder
        self._members = ring.members(holder)

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        """See `Stripe`."""
        answer, image = self._neighbours.rows(self._holder, Read(segment, rows.start, rows.stop))
        if image is None:
            raise ConnectionError("a holder does not know its own parity")
        return image, answer.points

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """See `Stripe`."""
        return self._neighbours.rows(self._members[part], Read(segment, rows.start, rows.stop, part, point))[1]
