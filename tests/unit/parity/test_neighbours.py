"""Prefetches of rows from the neighbours of a lost shard, which reply in order."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest

from cpr_trainer.exchange.frames import Frame, Header, Operation
from cpr_trainer.parity.coding import Image, PartShape, Ring
from cpr_trainer.parity.flush import Point
from cpr_trainer.parity.messages import Read, Rows, document_of, pack_rows
from cpr_trainer.parity.peer_connection import PeerConnection
from cpr_trainer.parity.rebuild import Neighbours, ParityUnavailableError, RemoteStripe, rows_of

SHARDS, K, LOST = 4, 2, 0
SHAPES = [PartShape(100, 3, 1)]
PART, OTHER = 0, 1
#: Shard 2 holds the parity of part 0 of the lost shard, and of part 1 of shard 1.
HOLDER, MEMBER = 2, 1


class Neighbour:
    """A shard that answers READ with its rows of that moment; `requests` are in order."""

    def __init__(self, stripe: Stripe) -> None:
        self.requests: list[Read] = []
        self._stripe = stripe
        self._answers: deque[Frame] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, header: Header, payload: list[Any]) -> None:
        request = document_of(Read, Frame(header, memoryview(b"".join(bytes(each) for each in payload))))
        self.requests.append(request)
        header, payload = pack_rows(1, *self._stripe.answer(request))
        self._answers.append(Frame(header, memoryview(bytearray().join(bytes(each) for each in payload))))

    def receive(self, expected: Operation) -> Frame:
        frame = self._answers.popleft()
        assert frame.header.operation is expected
        return frame


class Stripe:
    """A stripe: its parity and two members. The surviving member has the rows of the last two flushes."""

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

    def answer(self, request: Read) -> tuple[Rows, Image | None]:
        run = slice(request.first, request.end)
        if request.point is None:
            parity = self.lost[run].copy()
            parity.add(self.other[run])
            return Rows(known=True, points=self.points), parity
        known = {self.number: self.other, self.number - 1: self.former}
        held = known.get(request.point.number)
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


def decoded(source: Stripe, stripe: RemoteStripe, rows: range) -> bool:
    """Return whether these rows are those of the lost part."""
    found, lost = rows_of(stripe, PART, source.points[PART], 0, rows), source.lost[rows.start : rows.stop]
    return np.array_equal(found.rows, lost.rows) and np.array_equal(found.state, lost.state)


PIECES = [range(first, first + 20) for first in range(0, 100, 20)]


def test_prefetched_rows_are_requested_once_and_early() -> None:
    source = Stripe()
    neighbours, stripe = source.open()
    for rows in PIECES[:3]:
        stripe.prefetch(0, rows)
    assert [request.first for request in source.neighbours[HOLDER].requests] == [0, 20, 40]
    assert MEMBER not in source.neighbours, "its point is not known yet"
    assert decoded(source, stripe, PIECES[0])
    stripe.prefetch(0, PIECES[3])
    assert [request.first for request in source.neighbours[MEMBER].requests] == [0, 60]
    assert all(decoded(source, stripe, rows) for rows in PIECES[1:])
    assert [len(source.neighbours[each].requests) for each in (HOLDER, MEMBER)] == [5, 5]
    assert is_idle(neighbours)


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_prefetched_rows_are_right_despite_later_flushes(flushes: int) -> None:
    """Prefetched rows of a member belong to an earlier flush then, and are dropped."""
    source = Stripe()
    neighbours, stripe = source.open()
    assert decoded(source, stripe, PIECES[0])
    for rows in PIECES[1:]:
        stripe.prefetch(0, rows)
        for _ in range(flushes):
            source.flush()
    assert all(decoded(source, stripe, rows) for rows in PIECES[1:])
    assert is_idle(neighbours)


def test_cancelled_request_can_be_repeated() -> None:
    source = Stripe()
    neighbours, _ = source.open()
    request = Read(0, 0, 20, OTHER, source.points[OTHER])
    neighbours.request(MEMBER, request)
    neighbours.cancel(MEMBER, request)
    answer, found = neighbours.rows(MEMBER, request)
    assert answer.known
    assert found is not None
    assert len(source.neighbours[MEMBER].requests) == 1
    neighbours.request(MEMBER, request)
    neighbours.cancel(MEMBER, request)
    neighbours.rows(MEMBER, replace(request, first=20, end=40))
    assert is_idle(neighbours)


def test_reset_parity_is_detected_after_a_prefetch() -> None:
    source = Stripe()
    _, stripe = source.open()
    stripe.prefetch(0, PIECES[0])
    with pytest.raises(ParityUnavailableError):
        rows_of(stripe, PART, Point(10, 7, 3), 0, PIECES[0])


class ImmediateNeighbours:
    """Neighbours that reply at once; `open` are the requests without a reply or a cancellation."""

    def __init__(self) -> None:
        self.open: set[Read] = set()
        self.points: tuple[Point, ...] = ()
        self.refusing: set[int] = set()

    def request(self, _shard: int, request: Read) -> None:
        self.open.add(request)

    def cancel(self, _shard: int, request: Read) -> None:
        self.open.discard(request)

    def rows(self, shard: int, request: Read) -> tuple[Rows, Image | None]:
        self.open.discard(request)
        if request.point is None:
            return Rows(known=True, points=self.points), image(1)
        return (Rows(known=False), None) if shard in self.refusing else (Rows(known=True), image(2))


def test_prefetches_from_other_members_are_cancelled_after_a_refusal() -> None:
    """After the parity has advanced, it and the unread members are read again, at the new points."""
    neighbours, ring = ImmediateNeighbours(), Ring(5, 3)
    holder = ring.holder(LOST, PART)
    stripe = RemoteStripe(neighbours, PART, holder, ring)  # type: ignore[arg-type]
    first, second = (part for part in range(3) if part != PART)
    neighbours.points = (Point(9, 7, 3),) * 3
    stripe.parity(0, PIECES[0])
    stripe.prefetch(0, PIECES[1])
    _, points = stripe.parity(0, PIECES[1])
    neighbours.refusing = {ring.members(holder)[first]}
    assert stripe.member(first, points[first], 0, PIECES[1]) is None
    assert len(neighbours.open) == 1, "of the second member"
    neighbours.points, neighbours.refusing = (Point(9, 7, 4),) * 3, set()
    _, points = stripe.parity(0, PIECES[1])
    assert all(stripe.member(each, points[each], 0, PIECES[1]) is not None for each in (first, second))
    assert neighbours.open == set()


def is_idle(neighbours: Neighbours) -> bool:
    """Return whether there are no unused replies, and no pending requests."""
    return not any(
        map(any, (neighbours._requested.values(), neighbours._answered.values(), neighbours._cancelled.values()))
    )
