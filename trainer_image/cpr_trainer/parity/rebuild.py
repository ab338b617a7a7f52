"""How a replaced shard gets its rows from its neighbours, without a store: from which moment, and whether at all.

They are those of the newest flush that all its holders have. One of them may have one flush more, which it takes back:
XOR is its own inverse. What came later trainers push again. The rows themselves come while the shard serves; see
`fetch`.
"""

from __future__ import annotations

import logging

from cpr_contract.codec import from_json
from cpr_trainer.exchange.frames import FrameError
from cpr_trainer.exchange.handshake import HandshakeError
from cpr_trainer.parity.flush import FlushAccount, Moment, Rebuilt
from cpr_trainer.parity.messages import NotReadyError, Standing
from cpr_trainer.parity.neighbours import Neighbours
from cpr_trainer.parity.store import GoneError, Since, rows_of

_LOG = logging.getLogger(__name__)


def find(neighbours: Neighbours, generation: int, floor: int, author: int) -> tuple[FlushAccount, Rebuilt] | None:
    """Say what the rows stand for that parity has of a shard; None if it has not all of them.

    They are of this generation, and have `floor` samples of every rank at least: a save of so many may have let ranks
    forget them. The next save of these rows cannot stand on an earlier one. Every neighbour that is needed has answered
    then, and knows what is asked of it. author: the name of this process in flushes.
    """
    try:
        found = _chosen(neighbours, generation, floor)
        if found is None:
            return None
        neighbours.meet()
        for part, standing in enumerate(found):
            rows_of(neighbours.stripe(part), part, Since(standing.point, author), 0, range(0))
    except (OSError, FrameError, HandshakeError, NotReadyError, GoneError) as error:
        _LOG.info("parity does not have the rows: %s", error or type(error).__name__)
        return None
    account = from_json(FlushAccount, found[0].mark)
    points = tuple(standing.point for standing in found)
    return account, Rebuilt(points, found[0].mark, account.order, account.saved_steps)


def _chosen(neighbours: Neighbours, generation: int, floor: int) -> tuple[Standing, ...] | None:
    """Let all holders stand at the newest moment that they have in common; None if that is of no use."""
    found = neighbours.standings()
    moment = common_moment(found)
    if moment is None:
        _LOG.info("parity does not have all rows as of one moment")
        return None
    if any(standing.point.moment != moment for standing in found):
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
