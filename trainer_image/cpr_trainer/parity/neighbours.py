"""The shards that a lost one is computed from, over one connection to each."""

from __future__ import annotations

from collections import defaultdict, deque
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

#: An answer to a question for rows, and the rows, unless they are not known.
Found = tuple[Rows, Image | None]


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
        self._asked = defaultdict[int, deque[Read]](deque)
        self._answered = defaultdict[int, dict[Read, Found]](dict)
        self._unwanted = defaultdict[int, set[Read]](set)
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
        return StripeOf(self, part, self._ring.holder(self._index, part), self._ring)

    def ask(self, shard: int, question: Read) -> None:
        """Ask a shard for rows, and do not wait: it answers while others do. `rows` returns them."""
        self._unwanted[shard].discard(question)
        if question not in self._answered[shard] and question not in self._asked[shard]:
            self._dialogue(shard).send(*pack(Operation.READ, self._generation, question))
            self._asked[shard].append(question)

    def rows(self, shard: int, question: Read) -> Found:
        """Return what a shard answers to a question for rows, once for each time that it was asked."""
        self.ask(shard, question)
        answered, asked, unwanted = self._answered[shard], self._asked[shard], self._unwanted[shard]
        while question not in answered:
            found = self._receive(shard, asked[0])
            first = asked.popleft()
            if first in unwanted:
                unwanted.remove(first)
            else:
                answered[first] = found
        return answered.pop(question)

    def forget(self, shard: int, question: Read) -> None:
        """Nobody wants the answer to a question any more, if it was asked."""
        if question in self._asked[shard]:
            self._unwanted[shard].add(question)
        self._answered[shard].pop(question, None)

    def _receive(self, shard: int, question: Read) -> Found:
        frame = self._dialogue(shard).receive(Operation.ROWS)
        answer = document_of(Rows, frame)
        if not answer.known:
            return answer, None
        return answer, unpack_image(frame, question.end - question.first, self._shapes[question.segment])

    def _dialogue(self, shard: int) -> Dialogue:
        if shard not in self._open:
            self._open[shard] = self._stack.enter_context(self._connect(shard))
        return self._open[shard]


class StripeOf:
    """A stripe, as `decode` asks for it. `part` is that of the lost shard."""

    def __init__(self, neighbours: Neighbours, part: int, holder: int, ring: Ring) -> None:
        self._neighbours = neighbours
        self._part = part
        self._holder = holder
        self._members = ring.members(holder)
        self._points: Sequence[Point] = ()
        # By segment and first row: what members are asked beforehand.
        self._guesses: dict[tuple[int, int], dict[int, Read]] = {}
        self._guessed: dict[int, Read] = {}

    def expect(self, segment: int, rows: range) -> None:
        """These rows will be asked for: let them come meanwhile.

        Of the members those as of the points that the parity told last; if it has others then, they are asked again.
        """
        self._neighbours.ask(self._holder, Read(segment, rows.start, rows.stop))
        guesses = {
            other: Read(segment, rows.start, rows.stop, other, point)
            for other, point in enumerate(self._points)
            if other != self._part and point.number
        }
        for other, question in guesses.items():
            self._neighbours.ask(self._members[other], question)
        self._guesses[segment, rows.start] = guesses

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        """See `Stripe`."""
        answer, image = self._neighbours.rows(self._holder, Read(segment, rows.start, rows.stop))
        if image is None:
            raise ConnectionError("a holder does not know its own parity")
        self._points = answer.points
        self._guessed = self._guesses.pop((segment, rows.start), self._guessed)
        for other, question in self._guessed.items():
            if question.point != answer.points[other]:
                self._neighbours.forget(self._members[other], question)
        return image, answer.points

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """See `Stripe`."""
        question = Read(segment, rows.start, rows.stop, part, point)
        return self._neighbours.rows(self._members[part], question)[1]
