"""One shard as a trainer sees it: the connection, what was asked of it, and what it has not acknowledged.

Down -> Connecting -> Greeting -> Proved -> Joined -> Replaying -> Ready, and from anywhere to Down when the connection
breaks.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from cpr_contract.env import DATA_PORT
from cpr_contract.roster import Peer
from cpr_trainer.exchange.frames import Frame, FrameError, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.exchange.handshake import LIMIT_BYTES, NONCE_BYTES, HandshakeError, Initiator, Session
from cpr_trainer.exchange.lookup import CONNECTED, LinkState, PendingLookup, SaveState
from cpr_trainer.exchange.outbox import Outbox, Push
from cpr_trainer.runtime import backoff, begin_to_connect

_LOG = logging.getLogger(__name__)

PING_S = 1.0
_GREETING_S = 3.0  # for a connection to be made and both sides to prove the key
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 0.3  # a replaced shard is back within seconds: finding it must not take another


class Link:
    """The connection to one shard. Everything here happens under the exchange's lock; nothing blocks.

    `pushes` are those that the shard has not acknowledged, and with replay those that no save of it protects yet.
    `problem` says why the shard refused us, None if it did not. `spared` is the last step that goes on without the
    shard: rows that it asked for had their first values, and its push is dropped. `counted` is the step up to which
    this rank's row updates on the shard are counted, which are `row_updates`; the count begins with what the shard says
    first, and is -1 before that. `protected` is the last step that parity at other shards holds
    of every rank, -1 where it holds nothing.
    """

    def __init__(self, session: Session, peer: Peer, rng: random.Random, now: float) -> None:
        self.peer = peer
        self.state = LinkState.DOWN
        self.connection: socket.socket | None = None
        self.pushes = Outbox()
        self.applied = -1
        self.counted = -1
        self.spared = 0
        self.life = 0
        self.saved = SaveState()
        self.protected = -1
        self.last_heard = now
        self.problem: str | None = None
        self._session = session
        self._rng = rng
        self.row_updates = 0
        self._may_spare = 0
        self._served = False
        self._lookups: dict[int, PendingLookup] = {}
        self._ticket = 0
        self._delays: Iterator[float] = iter(())
        self._rest(now)

    @property
    def wants_write(self) -> bool:
        """Whether the connection is to be watched for room to write."""
        return self.state is LinkState.CONNECTING or not self._writer.idle

    @property
    def settled(self) -> bool:
        """Whether the shard owes no acknowledgement, nor will when it comes back."""
        back = self.state is LinkState.READY or self.pushes.oldest_retained is None
        return back and not self.pushes.unacknowledged

    @property
    def safe(self) -> int:
        """The last step whose push may go if its memory is needed: a save has it, or parity."""
        return max(self.saved.step, self.protected)

    def silent(self, now: float, for_s: float) -> bool:
        """Whether the shard has an address, and nothing was heard from it for the last `for_s` seconds."""
        return bool(self.peer.host) and now - self.last_heard > for_s

    def follow(self, peer: Peer, now: float, may_spare: int = 0) -> None:
        """Talk to this incarnation, at this address, from now on; steps up to `may_spare` need not wait for it."""
        self._served = self._served and peer.incarnation == self.peer.incarnation
        self._may_spare = may_spare
        if peer != self.peer:
            self.close()
            self.peer, self.last_heard, self.problem = peer, now, None
            self.applied, self.life, self.saved, self.protected = -1, 0, SaveState(), -1
            self._rest(now)

    def start_over(self) -> None:
        """Forget everything of the last generation, and ask whether the shard is ready in the new one."""
        self._stand_back()
        self.pushes.clear()
        self.applied, self.counted, self.spared, self.saved, self.protected = -1, -1, 0, SaveState(), -1
        self._next_ping = 0.0

    def can_spare(self, step: int) -> bool:
        """Whether `step` goes on without the shard, or may.

        Not once this incarnation was ready: with the first push it tells what it has lost, and that is all then.
        """
        away = self.state is not LinkState.READY and not self._served
        return step <= self.spared or (away and step <= self._may_spare)

    def spare(self, step: int) -> bool:
        """Let `step` go on without the shard, if it may; whether it does.

        No earlier push is sent any more either: what the shard misses ends where its pushes begin again.
        """
        if not self.can_spare(step):
            return False
        if step > self.spared:
            self.spared = step
            self.pushes.drop_unacknowledged()
        return True

    def send_lookup(self, step: int, numbers: NDArray[Any], lookup: PendingLookup) -> None:
        """Ask for some rows; `lookup` is told at once if the shard is away."""
        if self.state is not LinkState.READY:
            lookup.fail(self.peer.index)
            return
        self._ticket = (self._ticket + 1) % 2**32
        self._lookups[self._ticket] = lookup
        header = self._session.header(Operation.LOOKUP, step, self._ticket, len(numbers), numbers.nbytes)
        self._send(header, numbers)

    def count(self, step: int, rows: int) -> None:
        """Count the rows of a step, unless it is counted already."""
        if step > self.counted:
            self.counted, self.row_updates = step, self.row_updates + rows

    def uncount(self, step: int, rows: int) -> None:
        """Take back the count of a step, if it is the last one that is counted; none that is counted is spared then."""
        if step == self.counted:
            self.counted, self.row_updates = step - 1, self.row_updates - rows
            self.spared = min(self.spared, self.counted)

    def add_push(self, push: Push) -> None:
        """Take in the push of a step, to be sent until it is acknowledged. That of a spared step is counted alone."""
        push = replace(push, row_updates=self.row_updates)
        self.count(push.step, len(push.numbers))
        if push.step > self.spared:
            self.pushes.add(push)

    def send_on(self) -> None:
        """Send what was taken in, if the shard is ready; else it is sent when it becomes so."""
        if self.state is LinkState.READY:
            self._send_on()

    @property
    def standing(self) -> tuple[int, int, int, int]:
        """What a next process needs besides the pushes, to go on with this link."""
        return self.counted, self.row_updates, self.pushes.forgotten, self.spared

    def inherit(self, standing: Sequence[int], pushes: Iterable[Push]) -> None:
        """Go on where the last process stood, with the pushes that it kept: the shard will say which of them it has."""
        self.counted, self.row_updates, self.pushes.forgotten, self.spared = standing
        for push in pushes:
            if push.step > max(self.pushes.forgotten, self.spared):
                self.pushes.inherit(push)

    def tick(self, now: float) -> None:
        """Do what is due: connect, give up, ping."""
        if self.state is LinkState.DOWN:
            if self.peer.host and now >= self._next_attempt:
                self._connect(now)
            return
        joined = self.state in CONNECTED
        if not joined and now > self._patience_until:
            self._drop(now, "no answer")
        elif joined and self.silent(now, self._session.silence_s):
            # After a partition TCP alone would come back minutes late.
            self._drop(now, "nothing was heard from it")
        elif joined and now >= self._next_ping:
            self._next_ping = now + min(PING_S, self._session.silence_s / 3)
            self._ping()

    def on_writable(self, now: float) -> None:
        """Go on where the socket was busy."""
        if self.connection is None:
            return
        if self.state is LinkState.CONNECTING:
            error = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._drop(now, os.strerror(error))
                return
            self._greet()
        self._flush()

    def on_readable(self, now: float) -> None:
        """Read and handle every frame that is there."""
        try:
            while self.connection is not None and (frame := self._reader.read(self.connection)) is not None:
                self._handle(frame, now)
        except (OSError, FrameError, HandshakeError) as error:
            self.problem = None if isinstance(error, OSError) else str(error)
            self._drop(now, str(error))

    def close(self) -> None:
        """Close the connection; lookups under way fail."""
        self._stand_back()
        self.state = LinkState.DOWN
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _rest(self, now: float) -> None:
        """Be down, with nothing tried yet."""
        self._reader, self._writer = FrameReader(0), FrameWriter()
        self._next_attempt = self._patience_until = self._next_ping = now
        self._said = ""
        self._delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)

    def _connect(self, now: float) -> None:
        self.connection, code = begin_to_connect(self.peer.host, self.peer.port_base + DATA_PORT)
        self._reader, self._writer = FrameReader(LIMIT_BYTES, self._place), FrameWriter()
        self._patience_until = now + _GREETING_S
        self.state = LinkState.CONNECTING
        if code not in {0, errno.EINPROGRESS}:
            self._drop(now, os.strerror(code))

    def _greet(self) -> None:
        session = self._session
        self.state = LinkState.GREETING
        self._initiator = Initiator(
            session.key, session.me(), session.expected(self.peer), os.urandom(NONCE_BYTES), session.encoding
        )
        self._say(Operation.HELLO, self._initiator.hello())

    def _drop(self, now: float, why: str) -> None:
        shard = (self.peer.index, self.peer.incarnation)
        if self.state in CONNECTED:
            _LOG.info("lost shard %d (incarnation %d): %s", *shard, why)
        elif why != self._said:  # tried several times a second
            _LOG.info("no connection to shard %d (incarnation %d) at %s: %s", *shard, self.peer.host, why)
            self._said = why
        self.close()
        self._next_attempt = now + next(self._delays)

    def _stand_back(self) -> None:
        """Stop using the connection until the shard says that it is ready."""
        if self.state in CONNECTED:
            self.state = LinkState.JOINED
        self.pushes.connection_lost()
        for lookup in self._lookups.values():
            lookup.fail(self.peer.index)
        self._lookups.clear()

    def _handle(self, frame: Frame, now: float) -> None:
        if frame.header.operation is Operation.ERROR:
            raise HandshakeError(bytes(frame.payload).decode(errors="replace"))
        if self.state in {LinkState.GREETING, LinkState.PROVED}:
            self._on_greeting(frame, now)
        else:
            self._on_answer(frame.header)
        if self.state in CONNECTED:
            self.last_heard = now
            self._session.newest_roster_seen = max(self._session.newest_roster_seen, frame.header.roster)

    def _on_greeting(self, frame: Frame, now: float) -> None:
        match frame.header.operation:
            case Operation.CHALLENGE if self.state is LinkState.GREETING:
                proof, _ = self._initiator.prove(bytes(frame.payload))
                self.state = LinkState.PROVED
                self._say(Operation.PROOF, proof)
            case Operation.WELCOME if self.state is LinkState.PROVED:
                self.life = frame.header.count
                self._join(now)
            case operation:
                raise FrameError(f"{operation.name} before the handshake was over")

    def _on_answer(self, header: Header) -> None:
        match header.operation:
            case Operation.PONG | Operation.ACK:
                self._note(header)
            case Operation.VECTORS:
                if (lookup := self._lookups.pop(header.ticket, None)) is not None:
                    lookup.fill(self.peer.index)
            case Operation.NOT_READY:
                self._stand_back()
            case Operation.STALE:
                # With our own generation it answers what was sent in the last one: this one is served.
                if header.generation != self._session.counters.generation:
                    self._stand_back()
            case operation:
                raise FrameError(f"a shard does not send {operation.name} now")

    def _join(self, now: float) -> None:
        self.state = LinkState.JOINED
        self.problem, self._said = None, ""
        self._next_ping = now
        self._delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)
        self._reader.limit_bytes = 2**32

    def _note(self, header: Header) -> None:
        """Take in what PONG and ACK say; PONG after a pause is the sign to send again what the shard does not have."""
        if header.generation != self._session.counters.generation:
            self._stand_back()
            return
        self.applied = header.step
        if self.counted < 0:
            self.counted, self.row_updates = header.step, header.row_updates
        saved, full = (header.saved_step, header.saved_samples, header.cut_step), bool(header.count)
        self.saved = SaveState(*saved, self.peer.incarnation, store_full=full)
        self.pushes.acknowledge(header.step, header.order)
        self.protected = header.protected_step
        # A shard goes back to its parity, or if that is not whole any more to its save: what both hold is not needed.
        self.pushes.forget(self.saved.step if self.protected < 0 else min(self.saved.step, self.protected))
        if self.state is LinkState.JOINED and header.operation is Operation.PONG:
            self._replay()
        elif self.state in {LinkState.REPLAYING, LinkState.READY}:
            self._send_on()

    def _replay(self) -> None:
        """The shard serves us: before anything else send it what it does not have, which may be all that is kept."""
        self._served = True
        self.pushes.rewind(self.applied)
        _LOG.info("shard %d (incarnation %d) is ready", self.peer.index, self.peer.incarnation)
        if again := self.pushes.unacknowledged:
            _LOG.info("shard %d is sent %d pushes again", self.peer.index, again)
        self.state = LinkState.REPLAYING
        self._ping()  # it says how far the replay goes, before it begins
        self._send_on()

    def _send_on(self) -> None:
        """Send what the shard may be sent now, in the order of the steps."""
        for push in self.pushes.next_to_send():
            self._transmit(push)
        if self.state is LinkState.REPLAYING and self.pushes.all_sent:
            self.state = LinkState.READY

    def _ping(self) -> None:
        """Ask whether the shard is there, and say up to which step it is sent what it lacks; -1: not known yet."""
        known = self.state in {LinkState.REPLAYING, LinkState.READY}
        last = self.pushes.last_step
        self._send(self._session.header(Operation.PING, (self.applied if last is None else last) if known else -1))

    def _place(self, header: Header) -> memoryview | None:
        lookup = self._lookups.get(header.ticket) if header.operation is Operation.VECTORS else None
        return None if lookup is None else lookup.room(self.peer.index)

    def _transmit(self, push: Push) -> None:
        header = self._session.header(Operation.PUSH, push.step, count=len(push.numbers), size_bytes=push.nbytes)
        header = replace(header, row_updates=push.row_updates, order=push.order)
        self._send(header, push.numbers, *push.values)

    def _say(self, operation: Operation, payload: bytes) -> None:
        self._send(self._session.header(operation, size_bytes=len(payload)), payload)

    def _send(self, header: Header, *payload: Any) -> None:
        self._writer.add(header, *payload)
        self._flush()

    def _flush(self) -> None:
        if self.connection is not None and self.state is not LinkState.CONNECTING:
            try:
                self._writer.flush(self.connection)
            except OSError:
                # The reading side finds the connection broken as well, and clears up.
                return
