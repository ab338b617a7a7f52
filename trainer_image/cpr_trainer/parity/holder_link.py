"""The thread that brings the flushes of one part to the holder of its parity, and tells what the holder answers."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
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
#: Where nothing is to be sent for so long, the holder is asked whether it is there.
_IDLE_S = 0.5


@dataclass(frozen=True, slots=True)
class HolderReply:
    """The holder of a part's parity says where that stands, in a generation. None: the connection is gone.

    `first` of a connection: what was under way before has to be sent again if the parity does not have it.
    """

    part: int
    generation: int
    point: Point | None
    first: bool = False


@dataclass(frozen=True, slots=True)
class _Aim:
    """Whom to talk to, in which generation."""

    peer: Peer
    generation: int


class HolderLink:
    """Talks to the holder of part `part`. `connect` opens a connection in a generation; `tell` is called on the thread.

    After each connection it asks where the parity stands. What is to be sent then, the answer to `tell` decides.
    """

    def __init__(
        self,
        part: int,
        connect: Callable[[Peer, int], PeerConnection],
        tell: Callable[[HolderReply], None],
        rng: random.Random,
    ) -> None:
        self._part = part
        self._connect = connect
        self._tell = tell
        self._rng = rng
        self._changed = threading.Condition()
        self._aim: _Aim | None = None
        self._flush: Flush | None = None
        self._connection_to: PeerConnection | None = None
        self._anew = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"parity {part}", daemon=True)
        self._thread.start()

    def follow(self, peer: Peer | None, generation: int) -> None:
        """Talk to this peer in this generation from now on; None, or one without an address: to nobody."""
        aim = _Aim(peer, generation) if peer is not None and peer.host else None
        with self._changed:
            if aim == self._aim:
                return
            self._aim, self._flush = aim, None
            self._disconnect()

    def send(self, flush: Flush) -> None:
        """Send this flush, instead of one that was not sent yet."""
        with self._changed:
            self._flush = flush
            self._changed.notify_all()

    def restart(self) -> None:
        """Send nothing of what was to be sent, and ask anew where the parity stands."""
        with self._changed:
            self._flush, self._anew = None, True
            self._disconnect()

    def close(self) -> None:
        """Let the thread end; one that waits for a connection ends a little later."""
        with self._changed:
            self._closing = True
            self._disconnect()

    def _disconnect(self) -> None:
        """Break the connection, whatever the thread does with it now. Call it with the lock held."""
        if self._connection_to is not None:
            self._connection_to.shut_down()
        self._changed.notify_all()

    def _run(self) -> None:
        delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)
        while (aim := self._next_aim()) is not None:
            said = ""
            try:
                with self._connect(aim.peer, aim.generation) as connection:
                    self._talk(connection, aim)
            except (OSError, FrameError, HandshakeError) as error:
                said = str(error)
            except NotReadyError:
                said = "it is of another generation"
            _LOG.info("no parity at shard %d (incarnation %d): %s", aim.peer.index, aim.peer.incarnation, said)
            self._tell(HolderReply(self._part, aim.generation, None))
            with self._changed:
                self._connection_to = None
                if self._aim == aim and not self._closing:
                    self._changed.wait(next(delays))
                else:
                    delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)

    def _next_aim(self) -> _Aim | None:
        """Wait for somebody to talk to; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._aim is not None)
            return None if self._closing else self._aim

    def _talk(self, connection: PeerConnection, aim: _Aim) -> None:
        """Ask where the parity stands, then bring flushes, until something breaks."""
        with self._changed:
            if self._aim != aim or self._closing:
                return
            self._connection_to, self._flush, self._anew = connection, None, False
        question, first = pack(Operation.QUERY_POSITION, aim.generation, PositionQuery()), True
        while True:
            answer = document_of(PositionReply, connection.request(*question, Operation.POSITION))
            self._tell(HolderReply(self._part, aim.generation, answer.point, first))
            flush, first = self._next_flush(aim), False
            if self._over(aim):
                return
            if flush is None:
                question = pack(Operation.QUERY_POSITION, aim.generation, PositionQuery())
            else:
                question = pack_flush(aim.generation, flush)

    def _next_flush(self, aim: _Aim) -> Flush | None:
        """Wait a while for something to send."""
        with self._changed:
            self._changed.wait_for(lambda: self._over(aim) or self._flush is not None, _IDLE_S)
            flush, self._flush = self._flush, None
            return flush

    def _over(self, aim: _Aim) -> bool:
        """Return whether this talk is to end."""
        return self._closing or self._anew or self._aim != aim
