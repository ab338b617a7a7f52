"""The shards that a lost one is computed from, and their answers to what it asks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cpr_trainer.exchange.frames import Operation
from cpr_trainer.parity.coding import Image, Ring, Selected
from cpr_trainer.parity.flush import Moment, Point
from cpr_trainer.parity.messages import (
    Dialogue,
    Read,
    Rows,
    Shapes,
    Stand,
    Standing,
    document_of,
    pack,
    pack_read,
    unpack_image,
)

#: An answer to a question for rows, and the rows, unless they are not known.
Found = tuple[Rows, Image | None]


@dataclass(frozen=True, slots=True)
class Question:
    """Rows of a segment: of a shard's parity, or with a `point` of its `part` as it is in a parity there."""

    segment: int
    rows: Selected
    part: int = 0
    point: Point | None = None

    @property
    def read(self) -> Read:
        """How it travels, without the rows that are listed."""
        count = 0 if isinstance(self.rows, range) else len(self.rows)
        return Read(self.segment, self.rows.start, self.rows.stop, self.part, self.point, count)


class Neighbours:
    """Those of shard `index`, over one connection to each. `connect` opens a dialogue with a shard.

    For one thread. Everything raises as `Dialogue` does.
    """

    def __init__(
        self, ring: Ring, index: int, shapes: Shapes, generation: int, connect: Callable[[int], Dialogue]
    ) -> None:
        self._ring = ring
        self._index = index
        self._shapes = shapes
        self._generation = generation
        self._connect = connect
        self._open: dict[int, Dialogue] = {}
        self._asked = defaultdict[int, deque[Question]](deque)
        self._answered = defaultdict[int, dict[Question, Found]](dict)
        self._unwanted = defaultdict[int, set[Question]](set)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._stack.close()

    def hang_up(self) -> None:
        """End all dialogues: whoever waits for an answer is told at once. Any thread may call it."""
        for dialogue in tuple(self._open.values()):
            dialogue.hang_up()

    def standings(self, moment: Moment | None = None) -> tuple[Standing, ...]:
        """Return where the shard's parts stand in their parities, part after part.

        With a `moment` they are taken back to there first. Who is asked answers no earlier process of the shard again.
        The connections are of their own: a shard has one for rows, and another for all that concerns its flushes.
        """
        question = pack(Operation.STAND, self._generation, Stand(moment))

        def ask(holder: int) -> Standing:
            with self._connect(holder) as dialogue:
                return document_of(Standing, dialogue.ask(*question, Operation.STANDING))

        return tuple(map(ask, self._ring.holders(self._index)))

    def meet(self) -> None:
        """Connect to all shards that are asked for something."""
        for shard in sorted(self._ring.needed(self._index)):
            self._dialogue(shard)

    def stripe(self, part: int) -> StripeOf:
        """Return the stripe in which a part of the shard is."""
        return StripeOf(self, part, self._ring.holder(self._index, part), self._ring)

    def ask(self, shard: int, question: Question) -> None:
        """Ask a shard for rows, and do not wait: it answers while others do. `rows` returns them."""
        self._unwanted[shard].discard(question)
        if question not in self._answered[shard] and question not in self._asked[shard]:
            self._dialogue(shard).send(*pack_read(self._generation, question.read, question.rows))
            self._asked[shard].append(question)

    def rows(self, shard: int, question: Question) -> Found:
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

    def forget(self, shard: int, question: Question) -> None:
        """Nobody wants the answer to a question any more, if it was asked."""
        if question in self._asked[shard]:
            self._unwanted[shard].add(question)
        self._answered[shard].pop(question, None)

    def _receive(self, shard: int, question: Question) -> Found:
        frame = self._dialogue(shard).receive(Operation.ROWS)
        answer = document_of(Rows, frame)
        if not answer.known:
            return answer, None
        return answer, unpack_image(frame, len(question.rows), self._shapes[question.segment])

    def _dialogue(self, shard: int) -> Dialogue:
        if shard not in self._open:
            self._open[shard] = self._stack.enter_context(self._connect(shard))
        return self._open[shard]


class StripeOf:
    """A stripe, as `rows_of` asks for it. `part` is that of the lost shard."""

    def __init__(self, neighbours: Neighbours, part: int, holder: int, ring: Ring) -> None:
        self._neighbours = neighbours
        self._part = part
        self._holder = holder
        self._members = ring.members(holder)
        self._points: Sequence[Point] = ()
        # By segment and rows: what members are asked beforehand.
        self._guesses: dict[tuple[int, Selected], dict[int, Question]] = {}
        self._guessed: dict[int, Question] = {}

    def expect(self, segment: int, rows: Selected) -> None:
        """These rows will be asked for: let them come meanwhile.

        Of the members those as of the points that the parity told last; if it has others then, they are asked again.
        """
        self._neighbours.ask(self._holder, Question(segment, rows))
        guesses = {
            other: Question(segment, rows, other, point)
            for other, point in enumerate(self._points)
            if other != self._part and point.number
        }
        for other, question in guesses.items():
            self._neighbours.ask(self._members[other], question)
        self._guesses[segment, rows] = guesses

    def parity(self, segment: int, rows: Selected) -> tuple[Image, Sequence[Point]]:
        """See `Stripe`."""
        answer, image = self._neighbours.rows(self._holder, Question(segment, rows))
        if image is None:
            raise ConnectionError("a holder does not know its own parity")
        self._points = answer.points
        self._guessed = self._guesses.pop((segment, rows), self._guessed)
        for other, question in self._guessed.items():
            if question.point != answer.points[other]:
                self._neighbours.forget(self._members[other], question)
        return image, answer.points

    def member(self, part: int, point: Point, segment: int, rows: Selected) -> Image | None:
        """See `Stripe`."""
        return self._neighbours.rows(self._members[part], Question(segment, rows, part, point))[1]
