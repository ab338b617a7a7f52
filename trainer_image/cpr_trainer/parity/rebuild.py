"""Rebuilds the rows of a replaced shard from its neighbours, without a store.

They are those of the newest flush that all its holders have. A holder may have one flush more, which it undoes: XOR is
its own inverse. Trainers push later changes again.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import Protocol

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
from cpr_trainer.parity.peer_connection import NotReadyError, PeerConnection

_LOG = logging.getLogger(__name__)

#: The size of a piece of rows: each shard answers one between two frames of trainers.
_PIECE_BYTES = 1 << 20
#: Pieces that are prefetched, so that a busy shard does not delay the others.
_PREFETCHED = 8
#: Attempts to read a stripe at one moment. A flush takes a fraction of a second, and a request some milliseconds.
_TRIES = 50
#: A piece: the part, the segment, and the range of rows in it.
_Piece = tuple[int, int, range]
#: An answer to a READ, and the rows, unless they are not known.
Found = tuple[Rows, Image | None]


class ParityUnavailableError(Exception):
    """Parity does not have the rows: a holder was reset, or another member of the stripe has changed."""


class Stripe(Protocol):
    """The parity of one part of the lost shard, and the stripe's members. Raises OSError, ParityUnavailableError."""

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        """Return rows of the parity, and the points of its members at that moment."""

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """Return rows of the member with this part, as of a point in the parity; None if it has advanced."""


class Neighbours(ExitStack):
    """The shards from which shard `index` is rebuilt, with a connection to each. Raises as `PeerConnection`."""

    def __init__(
        self, ring: Ring, index: int, shapes: Shapes, generation: int, connect: Callable[[int], PeerConnection]
    ) -> None:
        super().__init__()
        self._ring = ring
        self._index = index
        self._shapes = shapes
        self._generation = generation
        self._connect = connect
        self._open: dict[int, PeerConnection] = {}
        self._requested = defaultdict[int, deque[Read]](deque)
        self._answered = defaultdict[int, dict[Read, Found]](dict)
        self._cancelled = defaultdict[int, set[Read]](set)

    def positions(self, moment: Moment | None = None) -> tuple[PositionReply, ...]:
        """Return the positions of the shard's parts in their parities, part after part.

        With a `moment` they are first undone to that. The holders refuse earlier incarnations of the shard afterwards.
        """
        request = pack(Operation.QUERY_POSITION, self._generation, PositionQuery(moment))
        holders = self._ring.holders(self._index)
        return tuple(
            document_of(PositionReply, self._connection_to(each).request(*request, Operation.POSITION))
            for each in holders
        )

    def stripe(self, part: int) -> RemoteStripe:
        """Return the stripe of one part of the shard."""
        return RemoteStripe(self, part, self._ring.holder(self._index, part), self._ring)

    def request(self, shard: int, request: Read) -> None:
        """Request rows from a shard without waiting, concurrently with others. `rows` returns them."""
        self._cancelled[shard].discard(request)
        if request not in self._answered[shard] and request not in self._requested[shard]:
            self._connection_to(shard).send(*pack(Operation.READ, self._generation, request))
            self._requested[shard].append(request)

    def rows(self, shard: int, request: Read) -> Found:
        """Return a shard's answer to a request for rows, once for each request."""
        self.request(shard, request)
        answered, requested, cancelled = self._answered[shard], self._requested[shard], self._cancelled[shard]
        while request not in answered:
            frame, first = self._connection_to(shard).receive(Operation.ROWS), requested.popleft()
            found: Found = document_of(Rows, frame), None
            if found[0].known:
                found = found[0], unpack_image(frame, first.end - first.first, self._shapes[first.segment])
            if first in cancelled:
                cancelled.remove(first)
            else:
                answered[first] = found
        return answered.pop(request)

    def cancel(self, shard: int, request: Read) -> None:
        """Cancel a request: drop its answer, now or when it arrives."""
        if request in self._requested[shard]:
            self._cancelled[shard].add(request)
        self._answered[shard].pop(request, None)

    def _connection_to(self, shard: int) -> PeerConnection:
        if shard not in self._open:
            self._open[shard] = self.enter_context(closing(self._connect(shard)))
        return self._open[shard]


class RemoteStripe:
    """A `Stripe` that is read from its shards. `part` is that of the lost shard."""

    def __init__(self, neighbours: Neighbours, part: int, holder: int, ring: Ring) -> None:
        self._neighbours = neighbours
        self._part = part
        self._holder = holder
        self._members = ring.members(holder)
        self._points: Sequence[Point] = ()
        # By segment and first row: the prefetches from members.
        self._prefetched: dict[tuple[int, int], dict[int, Read]] = {}
        self._current: dict[int, Read] = {}

    def prefetch(self, segment: int, rows: range) -> None:
        """Prefetch rows from the holder and the members.

        Those of members are as of the last known points of the parity. If it has others later, they are read again.
        """
        self._neighbours.request(self._holder, Read(segment, rows.start, rows.stop))
        requests = {
            other: Read(segment, rows.start, rows.stop, other, point)
            for other, point in enumerate(self._points)
            if other != self._part and point.number
        }
        for other, request in requests.items():
            self._neighbours.request(self._members[other], request)
        self._prefetched[segment, rows.start] = requests

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        answer, image = self._neighbours.rows(self._holder, Read(segment, rows.start, rows.stop))
        if image is None:
            raise ConnectionError("a holder has no rows of its own parity")
        self._points = answer.points
        self._current = self._prefetched.pop((segment, rows.start), self._current)
        for other, request in self._current.items():
            if request.point != answer.points[other]:
                self._neighbours.cancel(self._members[other], request)
        return image, answer.points

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        request = Read(segment, rows.start, rows.stop, part, point)
        return self._neighbours.rows(self._members[part], request)[1]


def rebuild(  # noqa: PLR0913, PLR0917 -- the target, the source, and the conditions
    local: LocalRows, parts: Parts, neighbours: Neighbours, generation: int, floor: int, cancelled: Callable[[], bool]
) -> tuple[FlushAccount, Rebuilt] | None:
    """Fill a shard's arena from parity, and return the progress of its rows; None if that is impossible.

    The rows are of this generation, and have at least `floor` samples of every rank: ranks may have dropped pushes of
    earlier ones. After None the arena holds a mixture, and must be loaded in another way. The next save of these rows
    has no chain.
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


def common_moment(positions: tuple[PositionReply, ...]) -> Moment | None:
    """Return the newest moment that all holders have, or can undo to."""
    first = positions[0]
    for moment in (first.point.moment, first.former):
        if moment is not None and moment[1] and all(moment in {s.point.moment, s.former} for s in positions):
            return moment
    return None


def rows_of(stripe: Stripe, part: int, point: Point, segment: int, rows: range) -> Image:
    """Decode rows of the lost part as of this point, from the parity of its stripe and the other members.

    All are of the same flushes, although no shard is stopped for it: a holder returns parity with the points of its
    members, and each member its rows as of its point. If one has advanced meanwhile, both are read again. Raises
    ParityUnavailableError, or the errors of `stripe`.
    """
    for _ in range(_TRIES):
        parity, points = stripe.parity(segment, rows)
        if points[part] != point:
            raise ParityUnavailableError(f"the parity of part {part} was reset")
        for other, at in enumerate(points):
            if other == part or not at.number:
                continue
            image = stripe.member(other, at, segment, rows)
            if image is None:
                break
            parity.add(image)
        else:
            return parity
    raise ParityUnavailableError(f"members of the stripe of part {part} do not have the rows that are in its parity")


def _chosen(neighbours: Neighbours, generation: int, floor: int) -> tuple[PositionReply, ...] | None:
    """Bring all holders to their newest common moment; return None if its rows cannot be used."""
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
        coming.extend(requested := tuple(islice(pieces, _PREFETCHED - len(coming))))
        for part, segment, rows in requested:
            stripes[part].prefetch(segment, rows)
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
    """Yield all rows of the parts in pieces."""
    for part, segments in enumerate(views):
        for segment, view in enumerate(segments):
            step = max(1, _PIECE_BYTES // (view.rows[:1].nbytes + view.state[:1].nbytes + 1))
            for first in range(0, len(view), step):
                yield part, segment, range(first, min(first + step, len(view)))
