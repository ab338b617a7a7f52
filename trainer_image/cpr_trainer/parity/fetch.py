"""Brings the rows of a shard that was replaced from its neighbours, while it serves: what is needed comes first.

The shard changes no row that is still to come. So whatever it flushes meanwhile, the parity has these rows as it had
them in the beginning, and every answer of the neighbours gives the same bits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_PIECE_BYTES = 1 << 19
#: So many pieces that nobody waits for are asked for ahead: a neighbour that has to wait for its processor does not
#: keep the others waiting. What somebody waits for comes after these.
_AHEAD = 6
#: A connection that breaks is made again for so long. A neighbour that is away for longer is taken for lost.
PATIENCE_S = 3.0
_RETRY_S = 0.05

#: A part of the shard, a segment, and rows in them.
Piece = tuple[int, int, Selected]


class Missing:
    """Which rows of a home are still to come, and which of them are waited for.

    One thread serves and asks what it `lacks`; one other brings rows. After `close`, which any thread may call, nothing
    is written any more.
    """

    def __init__(self, home: Home, parts: Parts) -> None:
        """All rows are still to come."""
        self._home = home
        self._parts = parts
        self._views = [
            [View.of_part(home.arena, parts, part, segment) for segment in range(len(home.arena.segments))]
            for part in range(parts.data_shards)
        ]
        self._there: NDArray[np.bool_] = np.zeros(len(home.arena), np.bool_)
        self._wanted: NDArray[np.bool_] = np.zeros(len(home.arena), np.bool_)
        self._queue = deque[Ints]()
        self._left = len(home.arena)
        self._closed = threading.Event()
        self._writing = threading.Lock()

    @property
    def left(self) -> int:
        """How many rows are still to come."""
        return self._left

    @property
    def closed(self) -> bool:
        """Whether nothing is written any more."""
        return self._closed.is_set()

    def lacks(self, slots: Ints) -> bool:
        """Whether one of the rows in these slots (int64 [n]) is still to come; those that are come before all others.

        For the thread that serves.
        """
        missing = slots[~self._there[slots]]
        fresh = missing[~self._wanted[missing]]
        if len(fresh):
            self._wanted[fresh] = True
            self._queue.append(fresh)
        return len(missing) > 0

    def wanted(self) -> Iterator[Piece]:
        """Yield the rows that somebody has begun to wait for since this was asked last."""
        asked = list[Ints]()
        while self._queue:
            asked.append(self._queue.popleft())
        if asked:
            slots = np.unique(np.concatenate(asked))
            yield from self._pieces_of(slots[~self._there[slots]])

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows in runs, but for runs that are there by then."""
        for part, segments in enumerate(self._views):
            for segment, view in enumerate(segments):
                step = self._rows_in_piece(segment)
                for first in range(0, len(view), step):
                    rows = range(first, min(first + step, len(view)))
                    if not self._there[view.first + rows.start : view.first + rows.stop].all():
                        yield part, segment, rows

    def write(self, part: int, segment: int, rows: Selected, image: Image) -> None:
        """These rows of a part have come. Those that are there stay as they are: they may have changed by now."""
        view = self._views[part][segment]
        at = rows.at.astype(np.int64) if isinstance(rows, Listed) else np.arange(rows.start, rows.stop)
        slots = at + view.first
        fresh = np.flatnonzero(~self._there[slots])
        with self._writing:
            if self.closed or not len(fresh):
                return
            if len(fresh) < len(slots):
                rows, image = Listed(at[fresh].astype(np.uint32)), image.copy_of(Listed(fresh.astype(np.uint32)))
            unchanged = view.write(rows, image)
            if len(unchanged):
                self._home.seed(segment, unchanged + (view.first - self._home.arena.segments[segment].first))
            self._there[slots] = True  # only now: the thread that serves looks here, and takes no lock
            self._left -= len(fresh)

    def close(self) -> None:
        """Let nothing be written from here on: when this returns, no write is under way."""
        self._closed.set()
        with self._writing:
            pass

    def rest(self, seconds: float) -> None:
        """Wait so long, or until it is closed."""
        self._closed.wait(seconds)

    def _rows_in_piece(self, segment: int) -> int:
        return max(1, _PIECE_BYTES // (self._home.arena.segments[segment].row_bytes + 1))

    def _pieces_of(self, slots: Ints) -> Iterator[Piece]:
        """Yield the rows in these slots (ascending)."""
        bounds = self._home.arena.bounds(slots)
        for segment, (mine, size) in enumerate(zip(self._home.arena.segments, self._parts.sizes, strict=True)):
            at, step = mine.within(slots[bounds[segment] : bounds[segment + 1]]), self._rows_in_piece(segment)
            for part in range(self._parts.data_shards):
                first, end = np.searchsorted(at, (part * size, (part + 1) * size)).tolist()
                for start in range(first, end, step):
                    yield part, segment, Listed((at[start : min(start + step, end)] - part * size).astype(np.uint32))


class Fetch:
    """The thread that brings what is `missing`: what is waited for, and else the rest.

    since: where each part stood in its parity. first: neighbours that are connected. connect: returns others, to which
    nothing is connected. `failed` says why the rows cannot be had any more; empty while they can.
    """

    def __init__(
        self, missing: Missing, since: Sequence[Since], first: Neighbours, connect: Callable[[], Neighbours]
    ) -> None:
        self.missing = missing
        self.failed = ""
        self._since = since
        self._neighbours = first
        self._connect = connect
        self._rest = missing.pieces()
        self._urgent, self._coming = deque[Piece](), deque[Piece]()  # asked for, and not there yet
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write nothing from here on; the thread ends soon."""
        self.missing.close()
        if self._thread is None:
            self._neighbours.close()
        else:
            self._neighbours.hang_up()

    def _run(self) -> None:
        """Talk to the neighbours until all is there, and connect again after something broke."""
        broken_s, left = None, self.missing.left
        while not self.missing.closed:
            try:
                with self._neighbours as neighbours:
                    neighbours.meet()
                    self._bring(neighbours)
            except GoneError as error:
                self.failed = str(error)
                return
            except (OSError, FrameError, HandshakeError, NotReadyError) as error:
                now = monotonic()
                if broken_s is None or self.missing.left < left:
                    broken_s, left = now, self.missing.left
                if now - broken_s > PATIENCE_S:
                    self.failed = str(error) or type(error).__name__
                    return
                self.missing.rest(_RETRY_S)
                self._neighbours = self._connect()
            except BaseException as error:
                self.failed = f"{type(error).__name__}: {error}"  # the thread that serves ends the process by it
                raise
            else:
                return

    def _bring(self, neighbours: Neighbours) -> None:
        stripes = [neighbours.stripe(part) for part in range(len(self._since))]
        for stripe in stripes:
            stripe.parity(0, range(0))  # it tells where its members stand: they can be asked beforehand
        self._expect(stripes, (*self._urgent, *self._coming))  # another connection was asked before
        while self.missing.left and not self.missing.closed:
            self._urgent.extend(self._expect(stripes, self.missing.wanted()))
            if not self._urgent:
                self._coming.extend(self._expect(stripes, islice(self._rest, _AHEAD - len(self._coming))))
            queue = self._urgent or self._coming
            part, segment, rows = queue[0]
            image = rows_of(stripes[part], part, self._since[part], segment, rows)
            self.missing.write(part, segment, rows, image)
            queue.popleft()

    @staticmethod
    def _expect(stripes: Sequence[StripeOf], pieces: Iterable[Piece]) -> list[Piece]:
        """Ask for rows, and do not wait for them."""
        asked = list(pieces)
        for part, segment, rows in asked:
            stripes[part].expect(segment, rows)
        return asked
