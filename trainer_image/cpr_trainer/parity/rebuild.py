"""How a replaced shard gets its rows from its neighbours, without a store.

They are those of the newest flush that all its holders have. One of them may have one flush more, which it takes back:
XOR is its own inverse. What came later trainers push again.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Self

from cpr_contract.codec import from_json
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.exchange.frames import FrameError, Operation
from cpr_trainer.exchange.handshake import HandshakeError
from cpr_trainer.parity.coding import Image, Parts, Ring, View
from cpr_trainer.parity.flush import FlushAccount, Moment, Point, Rebuilt
from cpr_trainer.parity.messages import (
    PositionQuery,
    PositionReply,
    Read,
    Rows,
    Shapes,
    document_of,
    pack,
    unpack_image,
)
from cpr_trainer.parity.parity_store import ParityUnavailableError, rows_of
from cpr_trainer.parity.peer_connection import NotReadyError, PeerConnection

# The shards that a lost one is computed from, over one connection to each.


#: An answer to a question for rows, and the rows, unless they are not known.
Found = tuple[Rows, Image | None]


class Neighbours:
    """Those of shard `index`. `connect` opens a connection with a shard. Everything raises as `PeerConnection` does."""

    def __init__(
        self, ring: Ring, index: int, shapes: Shapes, generation: int, connect: Callable[[int], PeerConnection]
    ) -> None:
        self._ring = ring
        self._index = index
        self._shapes = shapes
        self._generation = generation
        self._connect = connect
        self._open: dict[int, PeerConnection] = {}
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

    def positions(self, moment: Moment | None = None) -> tuple[PositionReply, ...]:
        """Return where the shard's parts stand in their parities, part after part.

        With a `moment` they are taken back to there first. Who is asked answers no earlier process of the shard again.
        """
        question = pack(Operation.QUERY_POSITION, self._generation, PositionQuery(moment))
        holders = self._ring.holders(self._index)
        return tuple(
            document_of(PositionReply, self._connection_to(each).request(*question, Operation.POSITION))
            for each in holders
        )

    def stripe(self, part: int) -> RemoteStripe:
        """Return the stripe in which a part of the shard is."""
        return RemoteStripe(self, part, self._ring.holder(self._index, part), self._ring)

    def ask(self, shard: int, question: Read) -> None:
        """Ask a shard for rows, and do not wait: it answers while others do. `rows` returns them."""
        self._unwanted[shard].discard(question)
        if question not in self._answered[shard] and question not in self._asked[shard]:
            self._connection_to(shard).send(*pack(Operation.READ, self._generation, question))
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
        frame = self._connection_to(shard).receive(Operation.ROWS)
        answer = document_of(Rows, frame)
        if not answer.known:
            return answer, None
        return answer, unpack_image(frame, question.end - question.first, self._shapes[question.segment])

    def _connection_to(self, shard: int) -> PeerConnection:
        if shard not in self._open:
            self._open[shard] = self._stack.enter_context(self._connect(shard))
        return self._open[shard]


class RemoteStripe:
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


_LOG = logging.getLogger(__name__)

#: Rows come in pieces of about so many bytes: each shard answers one between two frames of trainers.
_PIECE_BYTES = 1 << 20
#: So many pieces are asked for ahead: a shard that has to wait for its processor does not keep the others waiting.
_AHEAD = 8

_Piece = tuple[int, int, range]


def rebuild(  # noqa: PLR0913, PLR0917 -- what is filled, from where, and what will do
    local: LocalRows, parts: Parts, neighbours: Neighbours, generation: int, floor: int, cancelled: Callable[[], bool]
) -> tuple[FlushAccount, Rebuilt] | None:
    """Fill a shard's arena with the rows that parity has of it, and say what they stand for; None if it has not.

    They are of this generation, and have `floor` samples of every rank at least: a save of so many may have let ranks
    forget them. After None the arena holds a mixture, and must be
    loaded in another way. The next save of these rows cannot stand on an earlier one.
    """
    try:
        found = _chosen(neighbours, generation, floor)
        if found is None or not _fill(local, parts, neighbours, found, cancelled):
            return None
    except (OSError, FrameError, HandshakeError, NotReadyError, ParityUnavailableError) as error:
        _LOG.info("parity does not have the rows: %s", error or type(error).__name__)
        return None
    account = from_json(FlushAccount, found[0].mark)
    points = tuple(position.point for position in found)
    return account, Rebuilt(points, found[0].mark, account.order, account.saved_steps)


def _chosen(neighbours: Neighbours, generation: int, floor: int) -> tuple[PositionReply, ...] | None:
    """Let all holders stand at the newest moment that they have in common; None if that is of no use."""
    moment = common_moment(neighbours.positions())
    if moment is None:
        _LOG.info("parity does not have all rows as of one moment")
        return None
    found = neighbours.positions(moment)
    if any(position.point.moment != moment or not position.complete for position in found):
        _LOG.info("parity does not have all rows")
        return None
    account = from_json(FlushAccount, found[0].mark)
    if account.generation != generation or account.whole_samples < floor:
        _LOG.info("parity has the rows of %d samples in generation %d", account.whole_samples, account.generation)
        return None
    return found


def common_moment(positions: tuple[PositionReply, ...]) -> Moment | None:
    """Return the newest moment that all holders have, or can go back to."""
    first = positions[0]
    for moment in (first.point.moment, first.former):
        if moment is not None and moment[1] and all(moment in {s.point.moment, s.former} for s in positions):
            return moment
    return None


def _fill(
    local: LocalRows,
    parts: Parts,
    neighbours: Neighbours,
    found: tuple[PositionReply, ...],
    cancelled: Callable[[], bool],
) -> bool:
    arena = local.arena
    arena.epochs.clear()
    stripes = [neighbours.stripe(part) for part in range(len(found))]
    views = [
        [View.of_part(arena, parts, part, segment) for segment in range(len(arena.segments))]
        for part in range(len(found))
    ]
    coming = deque[_Piece]()
    pieces = _pieces(views)
    while True:
        coming.extend(ahead := tuple(islice(pieces, _AHEAD - len(coming))))
        for part, segment, rows in ahead:
            stripes[part].expect(segment, rows)
        if not coming:
            break
        if cancelled():
            return False
        part, segment, rows = coming.popleft()
        views[part][segment].write(rows.start, rows_of(stripes[part], part, found[part].point, segment, rows))
    arena.seed(local.placement, local.index, local.seeding)
    arena.epochs.end()
    return True


def _pieces(views: Sequence[Sequence[View]]) -> Iterator[_Piece]:
    """Yield all rows of the parts in pieces: the part, the segment, and which of its rows."""
    for part, segments in enumerate(views):
        for segment, view in enumerate(segments):
            step = max(1, _PIECE_BYTES // (view.rows[:1].nbytes + view.state[:1].nbytes + 1))
            for first in range(0, len(view), step):
                yield part, segment, range(first, min(first + step, len(view)))
