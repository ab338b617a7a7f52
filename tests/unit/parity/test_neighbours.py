"""Questions to the neighbours of a lost shard that are asked ahead, of shards that answer in order."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest

from cpr_trainer.exchange.frames import Frame, Header, Operation
from cpr_trainer.parity.coding import Image, Ring
from cpr_trainer.parity.flush import Point
from cpr_trainer.parity.messages import Read, Rows, document_of, pack_rows
from cpr_trainer.parity.parity_store import ParityUnavailableError, rows_of
from cpr_trainer.parity.peer_connection import PeerConnection
from cpr_trainer.parity.rebuild import Neighbours, RemoteStripe

SHARDS, K, LOST = 4, 2, 0
SHAPES = [(100, 3, 1)]
PART, OTHER = 0, 1
#: Shard 2 holds the parity of part 0 of the lost shard, and of part 1 of shard 1.
HOLDER, MEMBER = 2, 1


class Neighbour:
    """A shard that answers READ from what it holds at that moment; `asked` are the questions, in order."""

    def __init__(self, world: World) -> None:
        self.asked: list[Read] = []
        self._world = world
        self._answers: deque[Frame] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, header: Header, payload: list[Any]) -> None:
        asked = document_of(Read, Frame(header, memoryview(b"".join(bytes(each) for each in payload))))
        self.asked.append(asked)
        answer, told = pack_rows(1, *self._world.answer(asked))
        self._answers.append(Frame(answer, memoryview(bytearray().join(bytes(each) for each in told))))

    def receive(self, expected: Operation) -> Frame:
        frame = self._answers.popleft()
        assert frame.header.operation is expected
        return frame


class World:
    """The parity of the stripe and its two members. The other one's rows are of the last two flushes."""

    def __init__(self) -> None:
        self.lost, self.other = (image(seed) for seed in (1, 2))
        self.number = 5
        self.former = self.other
        self.neighbours: dict[int, Neighbour] = {}

    @property
    def points(self) -> tuple[Point, ...]:
        return Point(9, 7, 3), Point(9, 8, self.number)

    def flush(self) -> None:
        self.former, self.other, self.number = self.other, image(10 + self.number), self.number + 1

    def answer(self, asked: Read) -> tuple[Rows, Image | None]:
        run = slice(asked.first, asked.end)
        if asked.point is None:
            parity = self.lost[run].copy()
            parity.add(self.other[run])
            return Rows(known=True, points=self.points), parity
        known = {self.number: self.other, self.number - 1: self.former}
        held = known.get(asked.point.number)
        return (Rows(known=False), None) if held is None else (Rows(known=True), held[run].copy())

    def connect(self, shard: int) -> PeerConnection:
        self.neighbours[shard] = Neighbour(self)
        return self.neighbours[shard]  # type: ignore[return-value]

    def open(self) -> tuple[Neighbours, RemoteStripe]:
        neighbours = Neighbours(Ring(SHARDS, K), LOST, SHAPES, 1, self.connect)
        return neighbours, neighbours.stripe(PART)


def image(seed: int) -> Image:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, (100, 4), np.uint32)
    return Image(bits[:, :3].copy(), bits[:, 3:].copy(), np.ones(100, np.uint8))


def decoded(world: World, stripe: RemoteStripe, rows: range) -> bool:
    """Return whether these rows are those of the lost part."""
    found, lost = rows_of(stripe, PART, world.points[PART], 0, rows), world.lost[rows.start : rows.stop]
    return np.array_equal(found.rows, lost.rows) and np.array_equal(found.state, lost.state)


PIECES = [range(first, first + 20) for first in range(0, 100, 20)]


def test_what_was_expected_is_asked_once_and_before_it_is_wanted() -> None:
    world = World()
    neighbours, stripe = world.open()
    for rows in PIECES[:3]:
        stripe.prefetch(0, rows)
    assert [asked.first for asked in world.neighbours[HOLDER].asked] == [0, 20, 40]
    assert MEMBER not in world.neighbours, "where it stands is not known yet"
    assert decoded(world, stripe, PIECES[0])
    stripe.prefetch(0, PIECES[3])
    assert [asked.first for asked in world.neighbours[MEMBER].asked] == [0, 60]
    assert all(decoded(world, stripe, rows) for rows in PIECES[1:])
    assert [len(world.neighbours[each].asked) for each in (HOLDER, MEMBER)] == [5, 5]
    assert nothing_left(neighbours)


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_rows_are_right_whatever_is_flushed_after_they_were_asked_for(flushes: int) -> None:
    """What was asked ahead of a member is of another flush then, and is thrown away."""
    world = World()
    neighbours, stripe = world.open()
    assert decoded(world, stripe, PIECES[0])
    for rows in PIECES[1:]:
        stripe.prefetch(0, rows)
        for _ in range(flushes):
            world.flush()
    assert all(decoded(world, stripe, rows) for rows in PIECES[1:])
    assert nothing_left(neighbours)


def test_a_question_that_was_given_up_can_be_asked_again() -> None:
    world = World()
    neighbours, _ = world.open()
    question = Read(0, 0, 20, OTHER, world.points[OTHER])
    neighbours.request(MEMBER, question)
    neighbours.forget(MEMBER, question)
    answer, found = neighbours.rows(MEMBER, question)
    assert answer.known
    assert found is not None
    assert len(world.neighbours[MEMBER].asked) == 1
    neighbours.request(MEMBER, question)
    neighbours.forget(MEMBER, question)
    neighbours.rows(MEMBER, replace(question, first=20, end=40))
    assert nothing_left(neighbours)


def test_a_parity_that_began_anew_is_told_even_if_rows_were_asked_for_before() -> None:
    world = World()
    _, stripe = world.open()
    stripe.prefetch(0, PIECES[0])
    with pytest.raises(ParityUnavailableError):
        rows_of(stripe, PART, Point(10, 7, 3), 0, PIECES[0])


class Questions:
    """Neighbours that answer at once; `open` are the questions that were asked and neither answered nor forgotten."""

    def __init__(self) -> None:
        self.open: set[Read] = set()
        self.points: tuple[Point, ...] = ()
        self.refusing: set[int] = set()

    def request(self, _shard: int, question: Read) -> None:
        self.open.add(question)

    def forget(self, _shard: int, question: Read) -> None:
        self.open.discard(question)

    def rows(self, shard: int, question: Read) -> tuple[Rows, Image | None]:
        self.open.discard(question)
        if question.point is None:
            return Rows(known=True, points=self.points), image(1)
        return (Rows(known=False), None) if shard in self.refusing else (Rows(known=True), image(2))


def test_after_a_refusal_what_was_guessed_of_the_other_members_is_forgotten() -> None:
    """A parity that has moved on is read again, and the members that were not read yet are asked for the new points."""
    questions, ring = Questions(), Ring(5, 3)
    holder = ring.holder(LOST, PART)
    stripe = RemoteStripe(questions, PART, holder, ring)  # type: ignore[arg-type]
    first, second = (part for part in range(3) if part != PART)
    questions.points = (Point(9, 7, 3),) * 3
    stripe.parity(0, PIECES[0])
    stripe.prefetch(0, PIECES[1])
    _, points = stripe.parity(0, PIECES[1])
    questions.refusing = {ring.members(holder)[first]}
    assert stripe.member(first, points[first], 0, PIECES[1]) is None
    assert len(questions.open) == 1, "of the second member"
    questions.points, questions.refusing = (Point(9, 7, 4),) * 3, set()
    _, points = stripe.parity(0, PIECES[1])
    assert all(stripe.member(each, points[each], 0, PIECES[1]) is not None for each in (first, second))
    assert questions.open == set()


def nothing_left(neighbours: Neighbours) -> bool:
    """Return whether no answer is kept, or on its way, that nobody wants."""
    return not any(
        map(any, (neighbours._requested.values(), neighbours._answered.values(), neighbours._unwanted.values()))
    )
