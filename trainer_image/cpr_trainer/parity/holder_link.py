"""The thread that sends the flushes of one part to the holder of its parity, and reports the replies."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from cpr_contract.roster import Peer
from cpr_trainer.exchange.frames import FrameError, Operation
from cpr_trainer.exchange.handshake import HandshakeError
from cpr_trainer.parity.flush import Flush, Point
from cpr_trainer.parity.messages import PositionQuery, PositionReply, document_of, pack, pack_flush
from cpr_trainer.parity.peer_connection import NotReadyError, PeerConnection
from cpr_trainer.runtime import backoff

_LOG = logging.getLogger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 0.05, 0.5
#: The interval of queries while there is nothing to send.
_IDLE_S = 0.5


#: A peer, and the generation in which to connect to it.
_Target = tuple[Peer, int]


@dataclass(frozen=True, slots=True)
class HolderReply:
    """The position of a part in its parity, as reported by the holder, in a generation. None: the connection is lost.

    `first` of a connection: a flush that was in flight before has to be sent again, if the parity does not have it.
    """

    part: int
    generation: int
    point: Point | None
    first: bool = False


class HolderLink:
    """The link to the holder of `part`. `connect` opens a connection in a generation; the thread calls `report`.

    Each connection starts with a query of the position. The receiver of the report decides what to send then.
    """

    def __init__(
        self,
        part: int,
        connect: Callable[[Peer, int], PeerConnection],
        report: Callable[[HolderReply], None],
        rng: random.Random,
    ) -> None:
        self._part = part
        self._connect = connect
        self._report = report
        self._rng = rng
        self._changed = threading.Condition()
        self._target: _Target | None = None
        self._flush: Flush | None = None
        self._connection: PeerConnection | None = None
        self._restarting = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"parity {part}", daemon=True)
        self._thread.start()

    def follow(self, peer: Peer | None, generation: int) -> None:
        """Connect to this peer in this generation from now on; None, or a peer without an address: to none."""
        target = (peer, generation) if peer is not None and peer.host else None
        with self._changed:
            if target == self._target:
                return
            self._target, self._flush = target, None
            self._disconnect()

    def send(self, flush: Flush) -> None:
        """Send this flush; it replaces one that was not sent yet."""
        with self._changed:
            self._flush = flush
            self._changed.notify_all()

    def restart(self) -> None:
        """Drop the queued flush, reconnect, and query the position again."""
        with self._changed:
            self._flush, self._restarting = None, True
            self._disconnect()

    def close(self) -> None:
        """End the thread, after its current attempt to connect."""
        with self._changed:
            self._closing = True
            self._disconnect()

    def _disconnect(self) -> None:
        """Break the connection, even while the thread uses it. Call it with the lock held."""
        if self._connection is not None:
            self._connection.shut_down()
        self._changed.notify_all()

    def _run(self) -> None:
        delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)
        while (target := self._next_target()) is not None:
            why = ""
            try:
                with closing(self._connect(*target)) as connection:
                    self._exchange(connection, target)
            except (OSError, FrameError, HandshakeError) as error:
                why = str(error)
            except NotReadyError:
                why = "it is of another generation"
            peer, generation = target
            _LOG.info("no parity at shard %d (incarnation %d): %s", peer.index, peer.incarnation, why)
            self._report(HolderReply(self._part, generation, None))
            with self._changed:
                self._connection = None
                if self._target == target and not self._closing:
                    self._changed.wait(next(delays))
                else:
                    delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)

    def _next_target(self) -> _Target | None:
        """Wait for a target; return None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._target is not None)
            return None if self._closing else self._target

    def _exchange(self, connection: PeerConnection, target: _Target) -> None:
        """Query the position, then send flushes, until the connection fails or the target changes."""
        with self._changed:
            if self._target != target or self._closing:
                return
            self._connection, self._flush, self._restarting = connection, None, False
        _, generation = target
        query = pack(Operation.QUERY_POSITION, generation, PositionQuery())
        request, first = query, True
        while True:
            answer = document_of(PositionReply, connection.request(*request, Operation.POSITION))
            self._report(HolderReply(self._part, generation, answer.point, first))
            with self._changed:
                self._changed.wait_for(lambda: self._over(target) or self._flush is not None, _IDLE_S)
                flush, self._flush, first = self._flush, None, False
            if self._over(target):
                return
            request = query if flush is None else pack_flush(generation, flush)

    def _over(self, target: _Target) -> bool:
        """Return whether the connection has to end."""
        return self._closing or self._restarting or self._target != target
