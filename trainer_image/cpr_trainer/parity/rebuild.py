"""How a replaced shard gets its rows from its neighbours, without a store.

They are those of the newest flush that all its holders have. One of them may have one flush more, which it takes back:
XOR is its own inverse. What came later trainers push again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from cpr_contract.codec import from_json
from cpr_trainer.exchange.frames import FrameError
from cpr_trainer.exchange.handshake import HandshakeError
from cpr_trainer.parity.account import FlushAccount, Rebuilt
from cpr_trainer.parity.decode import GoneError, rows_of
from cpr_trainer.parity.dialogue import NotReadyError
from cpr_trainer.parity.flush import Moment
from cpr_trainer.parity.images import View
from cpr_trainer.parity.messages import Standing
from cpr_trainer.parity.neighbours import Neighbours
from cpr_trainer.parity.ring import Parts
from cpr_trainer.tables.home import Home

_LOG = logging.getLogger(__name__)

#: Rows come in pieces of about so many bytes: each shard answers one between two frames of trainers.
_PIECE_BYTES = 1 << 20
#: So many pieces are asked for ahead: a shard that has to wait for its processor does not keep the others waiting.
_AHEAD = 8

_Piece = tuple[int, int, range]


def rebuild(  # noqa: PLR0913, PLR0917 -- what is filled, from where, and what will do
    home: Home, parts: Parts, neighbours: Neighbours, generation: int, floor: int, cancelled: Callable[[], bool]
) -> tuple[FlushAccount, Rebuilt] | None:
    """Fill a shard's arena with the rows that parity has of it, and say what they stand for; None if it has not.

    They are of this generation, and have `floor` samples of every rank at least: a save of so many may have let ranks
    forget them. After None the arena holds a mixture, and must be
    loaded in another way. The next save of these rows cannot stand on an earlier one.
    """
    try:
        found = _chosen(neighbours, generation, floor)
        if found is None or not _fill(home, parts, neighbours, found, cancelled):
            return None
    except (OSError, FrameError, HandshakeError, NotReadyError, GoneError) as error:
        _LOG.info("parity does not have the rows: %s", error or type(error).__name__)
        return None
    account = from_json(FlushAccount, found[0].mark)
    points = tuple(standing.point for standing in found)
    return account, Rebuilt(points, found[0].mark, account.order, account.saved_steps)


def _chosen(neighbours: Neighbours, generation: int, floor: int) -> tuple[Standing, ...] | None:
    """Let all holders stand at the newest moment that they have in common; None if that is of no use."""
    moment = common_moment(neighbours.standings())
    if moment is None:
        _LOG.info("parity does not have all rows as of one moment")
        return None
    found = neighbours.standings(moment)
    if any(standing.point.moment != moment or not standing.complete for standing in found):
        _LOG.info("parity does not have all rows")
        return None
    account = from_json(FlushAccount, found[0].mark)
    if account.generation != generation or account.whole_samples < floor:
        _LOG.info("parity has the rows of %d samples in generation %d", account.whole_samples, account.generation)
        return None
    return found


def common_moment(standings: tuple[Standing, ...]) -> Moment | None:
    """Return the newest moment that all holders have, or can go back to."""
    first = standings[0]
    for moment in (first.point.moment, first.former):
        if moment is not None and moment[1] and all(moment in {s.point.moment, s.former} for s in standings):
            return moment
    return None


def _fill(
    home: Home, parts: Parts, neighbours: Neighbours, found: tuple[Standing, ...], cancelled: Callable[[], bool]
) -> bool:
    arena = home.arena
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
    arena.seed(home.placement, home.index, home.seeding)
    arena.epochs.end()
    return True


def _pieces(views: Sequence[Sequence[View]]) -> Iterator[_Piece]:
    """Yield all rows of the parts in pieces: the part, the segment, and which of its rows."""
    for part, segments in enumerate(views):
        for segment, view in enumerate(segments):
            step = max(1, _PIECE_BYTES // (view.rows[:1].nbytes + view.state[:1].nbytes + 1))
            for first in range(0, len(view), step):
                yield part, segment, range(first, min(first + step, len(view)))
