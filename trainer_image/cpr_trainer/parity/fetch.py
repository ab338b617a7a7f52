"""Brings the rows of a shard that was replaced from its neighbours, while it serves: what is needed first, goes first.

The shard changes no row before that is there. So whatever it flushes meanwhile, the parity has the rows that are still
to come as it had them in the beginning, and every answer of the neighbours gives the same bits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.exchange.frames import FrameError
from cpr_trainer.exchange.handshake import HandshakeError
from cpr_trainer.parity.coding import Image, Listed, Parts, Selected, View
from cpr_trainer.parity.messages import NotReadyError
from cpr_trainer.parity.neighbours import Neighbours, StripeOf
from cpr_trainer.parity.store import GoneError, Since, rows_of
from cpr_trainer.tables.arena import Home

_LOG = logging.getLogger(__name__)

#: Rows come in pieces of about so many bytes: each shard answers one between two frames of trainers.
_PIECE_BYTES = 1 << 20
#: So many pieces are asked for ahead: a shard that has to wait for its processor does not keep the others waiting.
_AHEAD = 8
#: A connection that breaks is made again for so long. A neighbour that is away for longer is taken for lost.
PATIENCE_S = 2.0
_RETRY_S = 0.05

#: A part of the shard, a segment, and rows in them.
_Piece = tuple[int, int, Selected]


class Missing:
    """Which rows of a home are still to come, and which are waited for. Any thread.

    A row is written by who has claimed it, once. After `close` nobody writes any more.
    """

    def __init__(self, home: Home, parts: Parts) -> None:
        """All rows are."""
        self._home = home
        self._parts = parts
        self._views = [
            [View.of_part(home.arena, parts, part, segment) for segment in range(len(home.arena.segments))]
            for part in range(parts.data_shards)
        ]
        self._changed = threading.Condition()
        self._there: NDArray[np.bool_] = np.zeros(len(home.arena), np.bool_)
        self._claimed: NDArray[np.bool_] = np.zeros(len(home.arena), np.bool_)
        self._wanted: NDArray[np.bool_] = np.zeros(len(home.arena), np.bool_)
        self._queue: list[Ints] = []
        self._left = len(home.arena)
        self._writing = 0
        self._closed = False

    @property
    def left(self) -> int:
        """How many rows are still to come."""
        return self._left

    @property
    def closed(self) -> bool:
        """Whether nothing is written any more."""
        return self._closed

    def lacks(self, slots: Ints) -> bool:
        """Whether one of the rows in these slots (int64 [n]) is not there. Those that are not go before all others."""
        with self._changed:
            missing = slots[~self._there[slots]]
            if not len(missing):
                return False
            fresh = missing[~self._wanted[missing]]
            if len(fresh):
                self._wanted[fresh] = True
                self._queue.append(fresh)
                self._changed.notify_all()
            return True

    def next_wanted(self) -> list[_Piece]:
        """Wait for rows that somebody waits for; return them all, and none at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._closed or not self._left)
                if self._closed or not self._queue:
                    return []
                slots = np.unique(np.concatenate(self._queue))
                self._queue.clear()
                slots = slots[~self._claimed[slots]]
                if len(slots):
                    return list(self._pieces_of(slots))

    def pieces(self) -> Iterator[_Piece]:
        """Yield all rows in runs, but for runs that are there by then."""
        for part, segments in enumerate(self._views):
            for segment, view in enumerate(segments):
                step = max(1, _PIECE_BYTES // (view.rows[:1].nbytes + view.state[:1].nbytes + 1))
                for first in range(0, len(view), step):
                    rows = range(first, min(first + step, len(view)))
                    if not self._claimed[view.first + rows.start : view.first + rows.stop].all():
                        yield part, segment, rows

    def write(self, part: int, segment: int, rows: Selected, image: Image) -> None:
        """These rows of a part have come. Those that are there, or that another thread writes, stay as they are."""
        view = self._views[part][segment]
        at = rows.at.astype(np.int64) if isinstance(rows, Listed) else np.arange(rows.start, rows.stop)
        slots = at + view.first
        with self._changed:
            if self._closed:
                return
            fresh = ~self._claimed[slots]
            self._claimed[slots] = True
            self._writing += 1
        written = slots[:0]
        try:
            if fresh.all():
                self._put(segment, view, rows, image)
            elif fresh.any():
                which = Listed(at[fresh].astype(np.uint32))
                self._put(segment, view, which, image.copy_of(Listed(np.flatnonzero(fresh).astype(np.uint32))))
            written = slots[fresh]
        finally:
            with self._changed:
                self._there[written] = True
                self._left -= len(written)
                self._writing -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody write from here on, and wait for who does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._writing)

    def rest(self, seconds: float) -> None:
        """Wait so long, or until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def _put(self, segment: int, view: View, rows: Selected, image: Image) -> None:
        """Write rows that are this thread's. Those that never changed get their first values."""
        unchanged = view.write(rows, image)
        if len(unchanged):
            self._home.seed(segment, unchanged + (view.first - self._home.arena.segments[segment].first))

    def _pieces_of(self, slots: Ints) -> Iterator[_Piece]:
        """Yield these rows (ascending) by part and segment."""
        bounds = self._home.arena.bounds(slots)
        for segment, (mine, size) in enumerate(zip(self._home.arena.segments, self._parts.sizes, strict=True)):
            at = mine.within(slots[bounds[segment] : bounds[segment + 1]])
            for part in range(self._parts.data_shards):
                first, end = np.searchsorted(at, (part * size, (part + 1) * size)).tolist()
                if first < end:
                    yield part, segment, Listed((at[first:end] - part * size).astype(np.uint32))


class Fetch:
    """Two threads that bring what is `missing`: one what is waited for, one the rest.

    since: where each part stood in its parity. connect: returns neighbours to which nothing is connected. `first` are
    connected, and for the first of the two. `failed` says why the rows cannot be had any more, empty while they can.
    """

    def __init__(
        self, missing: Missing, since: Sequence[Since], first: Neighbours, connect: Callable[[], Neighbours]
    ) -> None:
        self.missing = missing
        self.failed = ""
        self._since = since
        self._first = first
        self._connect = connect
        self._talking: list[Neighbours] = []
        self._started = False
        self._in_hand: list[_Piece] = []  # what was waited for, and has not come yet

    def start(self) -> None:
        """Begin."""
        self._started = True
        for name, work, first in (("wanted", self._bring_wanted, self._first), ("rest", self._bring_rest, None)):
            threading.Thread(target=self._run, args=(work, first), name=f"fetch {name}", daemon=True).start()

    def close(self) -> None:
        """Write nothing from here on; the threads end soon."""
        self.missing.close()
        if not self._started:
            self._first.close()
        for neighbours in tuple(self._talking):
            neighbours.hang_up()

    def _run(self, work: Callable[[Neighbours], None], first: Neighbours | None) -> None:
        """Work with neighbours until all is done, and with others after a connection broke."""
        broken_since, left = None, self.missing.left
        while not self.missing.closed and self.missing.left and not self.failed:
            neighbours, first = first or self._connect(), None
            self._talking.append(neighbours)
            try:
                with neighbours:
                    neighbours.meet()
                    work(neighbours)
                    return
            except GoneError as error:
                self.failed = str(error)
                return
            except (OSError, FrameError, HandshakeError, NotReadyError) as error:
                now = monotonic()
                if broken_since is None or self.missing.left < left:
                    broken_since = now
                left = self.missing.left
                if now - broken_since > PATIENCE_S:
                    self.failed = str(error) or type(error).__name__
                self.missing.rest(_RETRY_S)
            except Exception as error:  # the main thread ends the process by it
                self.failed = f"{type(error).__name__}: {error}"
                raise
            finally:
                self._talking.remove(neighbours)

    def _bring_wanted(self, neighbours: Neighbours) -> None:
        """Bring rows that are waited for, whatever there is at a time in one round."""
        stripes = [neighbours.stripe(part) for part in range(len(self._since))]
        for stripe in stripes:
            stripe.expect(0, range(0))
        for stripe in stripes:
            stripe.parity(0, range(0))  # it tells where its members stand
        while wanted := self._in_hand or self.missing.next_wanted():
            self._in_hand = wanted
            for part, segment, rows in wanted:
                stripes[part].expect(segment, rows)
            for piece in wanted:
                self._take(stripes, piece)
            self._in_hand = []

    def _bring_rest(self, neighbours: Neighbours) -> None:
        """Bring all rows, in runs, some of which are asked for before others have come."""
        stripes = [neighbours.stripe(part) for part in range(len(self._since))]
        coming, pieces = deque[_Piece](), self.missing.pieces()
        while not self.missing.closed:
            ahead = tuple(islice(pieces, _AHEAD - len(coming)))
            for part, segment, rows in ahead:
                stripes[part].expect(segment, rows)
            coming.extend(ahead)
            if not coming:
                return
            self._take(stripes, coming.popleft())

    def _take(self, stripes: Sequence[StripeOf], piece: _Piece) -> None:
        part, segment, rows = piece
        self.missing.write(part, segment, rows, rows_of(stripes[part], part, self._since[part], segment, rows))
