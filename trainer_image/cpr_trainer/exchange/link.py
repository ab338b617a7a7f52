"""A trainer's link to one shard: the connection, the pending lookups, and the unacknowledged pushes.

Down -> Connecting -> Greeting -> Proved -> Joined -> Replaying -> Ready, and from any state to Down when the connection
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

from cpr_contract.env import DATA_PORT, ROLE_SHARD
from cpr_contract.roster import Peer
from cpr_trainer.exchange.frames import Frame, FrameError, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.exchange.handshake import LIMIT_BYTES, NONCE_BYTES, HandshakeError, Initiator, Session
from cpr_trainer.exchange.lookup import CONNECTED, LinkState, PendingLookup, SaveState
from cpr_trainer.exchange.outbox import Outbox, Push
from cpr_trainer.runtime import Stream, TlsConnection, backoff, begin_to_connect

_LOG = logging.getLogger(__name__)

PING_S = 1.0
_HANDSHAKE_TIMEOUT_S = 3.0  # for the connection and the handshake
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 0.3  # a replaced shard is back within seconds, and must be found quickly
#: The shard serves this generation.
_SERVED = {LinkState.REPLAYING, LinkState.READY}


class Link:
    """The link to one shard. Everything here happens under the exchange's lock; nothing blocks.

    `pushes` are those that the shard has not acknowledged, and with replay those that none of its saves protects yet.
    `problem` is the reason of the shard's refusal, None if there is none. `skipped` is the last step that is trained
    without the shard: its lookups return first values, and its push is dropped. `counted` is the step up to which
    `row_updates` counts this rank's row updates on the shard; the count starts with the shard's own, and is -1 before.
    `protected` is the last step that parity at other shards holds of every rank, -1 for none. `received` is the last
    step whose push the shard has received on this connection; -1: none.
    """

    def __init__(self, session: Session, peer: Peer, rng: random.Random, now: float) -> None:
        self.peer = peer
        self.state = LinkState.DOWN
        self.connection: Stream | None = None
        self.pushes = Outbox()
        self.applied = -1
        self.counted = -1
        self.skipped = 0
        self.process_number = 0
        self.saved = SaveState()
        self.protected = -1
        self.received = -1
        self.last_seen = now
        self.problem: str | None = None
        self._session = session
        self._rng = rng
        self.row_updates = 0
        self._may_skip = 0
        self._served = False
        self._lookups: dict[int, PendingLookup] = {}
        self._ticket = 0
        self._push_number = 0
        self._delays: Iterator[float] = iter(())
        self._reset(now)

    @property
    def wants_write(self) -> bool:
        """True if to poll the connection for writability."""
        if isinstance(self.connection, TlsConnection) and self.connection.handshaking:
            return False  # the shard's answer is awaited
        return self.state is LinkState.CONNECTING or not self._writer.idle

    @property
    def settled(self) -> bool:
        """True if every push is acknowledged, and would be after the shard's return."""
        back = self.state is LinkState.READY or self.pushes.oldest_retained is None
        return back and not self.pushes.unacknowledged

    @property
    def safe(self) -> int:
        """The last step with a push that may be dropped if memory is needed: a save has it, or parity."""
        return max(self.saved.step, self.protected)

    def unresponsive(self, now: float, for_s: float) -> bool:
        """Return whether the shard has an address and sent nothing for the last `for_s` seconds."""
        return bool(self.peer.host) and now - self.last_seen > for_s

    def follow(self, peer: Peer, now: float, may_skip: int = 0) -> None:
        """Connect to this incarnation at this address from now on. Steps up to `may_skip` need not wait for it."""
        self._served = self._served and peer.incarnation == self.peer.incarnation
        self._may_skip = may_skip
        if peer != self.peer:
            self.close()
            self.peer, self.last_seen, self.problem = peer, now, None
            self.applied, self.process_number, self.saved, self.protected = -1, 0, SaveState(), -1
            self._reset(now)

    def start_over(self) -> None:
        """Drop the state of the last generation, and query whether the shard is ready in the new one."""
        self._suspend()
        self._expect_received()
        self.pushes.clear()
        self.applied, self.counted, self.skipped, self.saved, self.protected = -1, -1, 0, SaveState(), -1
        self._next_ping = 0.0

    def can_skip(self, step: int) -> bool:
        """Return whether `step` is trained without the shard, or may be.

        It may not once this incarnation was ready: its losses are fixed by the first push.
        """
        never_ready = self.state is not LinkState.READY and not self._served
        return step <= self.skipped or (never_ready and step <= self._may_skip)

    def skip(self, step: int) -> bool:
        """Train `step` without the shard, if that is allowed; return whether it is.

        Earlier pushes are dropped too: the shard misses one range of steps, which ends with the next push.
        """
        if not self.can_skip(step):
            return False
        if step > self.skipped:
            self.skipped = step
            self.pushes.drop_unacknowledged()
        return True

    def send_lookup(self, step: int, names: NDArray[Any], count: int, lookup: PendingLookup) -> None:
        """Request `count` rows; `lookup` fails at once if the shard is unavailable."""
        if self.state is not LinkState.READY:
            lookup.fail(self.peer.index)
            return
        self._ticket = (self._ticket + 1) % 2**32
        self._lookups[self._ticket] = lookup
        header = self._session.header(Operation.LOOKUP, step, self._ticket, count, names.nbytes)
        self._send(header, names)

    def count(self, step: int, rows: int) -> None:
        """Count the rows of a step, unless it is counted already."""
        if step > self.counted:
            self.counted, self.row_updates = step, self.row_updates + rows

    def uncount(self, step: int, rows: int) -> None:
        """Undo the count of a step, if it is the last counted one; no counted step stays skipped then."""
        if step == self.counted:
            self.counted, self.row_updates = step - 1, self.row_updates - rows
            self.skipped = min(self.skipped, self.counted)

    def withdraw(self, step: int) -> None:
        """Drop the unacknowledged pushes after `step`, and undo their count."""
        dropped = self.pushes.drop_after(step)
        if dropped is not None:
            self.counted, self.row_updates = dropped.step - 1, dropped.row_updates

    def add_push(self, push: Push) -> None:
        """Queue the push of a step, which is sent until acknowledged. The push of a skipped step is only counted."""
        # The last process of this rank may have pushed this very step, and then the shard's count contains it.
        earlier = self.row_updates - (push.count if push.step <= self.counted else 0)
        push = replace(push, row_updates=earlier)
        self.count(push.step, push.count)
        if push.step > self.skipped:
            self._expect_received()
            self.pushes.add(push)

    def send_on(self) -> None:
        """Send the queued pushes that may be in flight now, in the order of the steps, if the shard is ready."""
        if self.state not in _SERVED:
            return
        for push in self.pushes.next_to_send():
            header = self._session.header(Operation.PUSH, push.step, count=push.count, size_bytes=push.nbytes)
            header = header._replace(row_updates=push.row_updates, order=push.order, ticket=self._push_number)
            self._send(header, push.names, *push.values)
        if self.pushes.all_sent:
            self.state = LinkState.READY

    def send_commit(self) -> None:
        """Send the shard the last committed step, once it is ready and the rows up to that step are counted."""
        session, step = self._session, self._session.committed
        next_push = self.pushes.last(step + 1)
        if step < 0 or self.state not in _SERVED:
            return
        if self.counted == step or next_push is not None:
            rows = self.row_updates if next_push is None else next_push.row_updates
            header = session.header(Operation.COMMIT, step, count=int(session.for_all))
            self._send(header._replace(order=self.pushes.first_step(step), row_updates=rows))

    @property
    def resume_state(self) -> tuple[int, int, int, int]:
        """The state, without the pushes, from which the next process continues this link."""
        return self.counted, self.row_updates, self.pushes.forgotten, self.skipped

    def resume(self, state: Sequence[int], pushes: Iterable[Push]) -> None:
        """Continue from the last process's state and pushes. The shard will report which of them it has."""
        self.counted, self.row_updates, self.pushes.forgotten, self.skipped = state
        for push in pushes:
            if push.step > max(self.pushes.forgotten, self.skipped):
                self.pushes.resume(push)

    def tick(self, now: float) -> None:
        """Connect, give up, or ping, if that is due."""
        if self.state is LinkState.DOWN:
            if self.peer.host and now >= self._next_attempt:
                self._connect(now)
            return
        joined = self.state in CONNECTED
        if not joined and now > self._deadline:
            self._drop(now, "no answer")
        elif joined and self.unresponsive(now, self._session.silence_s):
            # TCP's own retries would take minutes after a partition.
            self._drop(now, "it is unresponsive")
        elif joined and now >= self._next_ping:
            self._next_ping = now + min(PING_S, self._session.silence_s / 3)
            self.ping()

    def ping(self) -> None:
        """Query whether the shard is ready, and announce the next cut and the last step of the replay; -1: unknown."""
        known = self.state in _SERVED
        last = self.pushes.last_step
        self._send(self._session.header(Operation.PING, (self.applied if last is None else last) if known else -1))

    def on_writable(self, now: float) -> None:
        """Continue the handshake, and send queued bytes."""
        if self.connection is None:
            return
        if self.state is LinkState.CONNECTING:
            code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._drop(now, os.strerror(code))
                return
            try:
                self._greet()
            except OSError as error:  # it has just ended
                self._drop(now, str(error))
                return
        self._flush()

    def on_readable(self, now: float) -> None:
        """Read and handle all received frames."""
        try:
            while self.connection is not None and (frame := self._reader.read(self.connection)) is not None:
                self._handle(frame, now)
        except (OSError, FrameError, HandshakeError) as error:
            self.problem = None if isinstance(error, OSError) else str(error)
            self._drop(now, str(error))

    def close(self) -> None:
        """Close the connection; pending lookups fail."""
        self._suspend()
        self.state = LinkState.DOWN
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _reset(self, now: float) -> None:
        """Reset the link to a peer that was not tried yet."""
        self._reader, self._writer = FrameReader(0), FrameWriter()
        self._next_attempt = self._deadline = self._next_ping = now
        self._last_logged = ""
        self._delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)

    def _connect(self, now: float) -> None:
        self.connection, code = begin_to_connect(self.peer.host, self.peer.port_base + DATA_PORT)
        self._reader, self._writer = FrameReader(LIMIT_BYTES, self._place), FrameWriter()
        self._deadline = now + _HANDSHAKE_TIMEOUT_S
        self.state = LinkState.CONNECTING
        if code not in {0, errno.EINPROGRESS}:
            self._drop(now, os.strerror(code))

    def _greet(self) -> None:
        session = self._session
        if session.certificates is not None and isinstance(self.connection, socket.socket):
            self.connection = session.certificates.connect(self.connection, ROLE_SHARD, self.peer.index)
        self.state = LinkState.GREETING
        self._initiator = Initiator(
            session.key, session.identity(), session.expected(self.peer), os.urandom(NONCE_BYTES), session.encoding
        )
        self._send_handshake(Operation.HELLO, self._initiator.hello)

    def _drop(self, now: float, why: str) -> None:
        shard = (self.peer.index, self.peer.incarnation)
        if self.state in CONNECTED:
            _LOG.info("lost shard %d (incarnation %d): %s", *shard, why)
        elif why != self._last_logged:  # tried several times a second
            _LOG.info("no connection to shard %d (incarnation %d) at %s: %s", *shard, self.peer.host, why)
            self._last_logged = why
        self.close()
        self._next_attempt = now + next(self._delays)

    def _expect_received(self) -> None:
        """Count no RECEIVED of an earlier push, which may be one of the same step, or of the last generation."""
        self.received, self._push_number = -1, (self._push_number + 1) % 2**32

    def _suspend(self) -> None:
        """Stop using the connection until the shard is ready."""
        if self.state in CONNECTED:
            self.state = LinkState.JOINED
        self.pushes.connection_lost()
        self.received = -1
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
            self.last_seen = now
            self._session.newest_roster_seen = max(self._session.newest_roster_seen, frame.header.roster)

    def _on_greeting(self, frame: Frame, now: float) -> None:
        match frame.header.operation:
            case Operation.CHALLENGE if self.state is LinkState.GREETING:
                proof, _ = self._initiator.prove(bytes(frame.payload))
                self.state = LinkState.PROVED
                self._send_handshake(Operation.PROOF, proof)
            case Operation.WELCOME if self.state is LinkState.PROVED:
                self.process_number = frame.header.count
                self.state = LinkState.JOINED
                self.problem, self._last_logged = None, ""
                self._next_ping = now
                self._delays = backoff(self._rng, first_s=_FIRST_RETRY_S, cap_s=_LAST_RETRY_S)
                self._reader.limit_bytes = 2**32
            case operation:
                raise FrameError(f"{operation.name} before the handshake was over")

    def _on_answer(self, header: Header) -> None:
        match header.operation:
            case Operation.PONG | Operation.ACK:
                self._note(header)
            case Operation.RECEIVED:
                self.received = header.step if header.ticket == self._push_number else self.received
            case Operation.VECTORS:
                if (lookup := self._lookups.pop(header.ticket, None)) is not None:
                    lookup.fill(self.peer.index)
            case Operation.NOT_READY:
                self._suspend()
            case Operation.STALE:
                # With our own generation it answers a frame of the last one, and this one is served.
                if header.generation != self._session.counters.generation:
                    self._suspend()
            case operation:
                raise FrameError(f"a shard does not send {operation.name} now")

    def _note(self, header: Header) -> None:
        """Handle a PONG or an ACK. The first PONG starts the replay of pushes that the shard lacks."""
        if header.generation != self._session.counters.generation:
            self._suspend()
            return
        self.applied = header.step
        if self.counted < 0:
            self.counted, self.row_updates = header.order - 1 if header.order else header.step, header.row_updates
        saved, full = (header.saved_step, header.saved_samples, header.cut_step), bool(header.count)
        self.saved = SaveState(*saved, self.peer.incarnation, store_full=full)
        self.pushes.acknowledge(header.step, header.order if header.operation is Operation.ACK else 0)
        self.protected = header.protected_step
        # A lost shard is rebuilt from parity, or if that is incomplete from its save. Pushes in both are not needed. If
        # no parity is reported, holders may still have an earlier one from which a successor is rebuilt.
        self.pushes.forget(min(self.saved.step, self.protected) if self._session.parity else self.saved.step)
        if self.state is LinkState.JOINED and header.operation is Operation.PONG:
            # Send the shard all pushes that it lacks, before anything else.
            self._served = True
            self.pushes.rewind(self.applied)
            _LOG.info("shard %d (incarnation %d) is ready", self.peer.index, self.peer.incarnation)
            if again := self.pushes.unacknowledged:
                _LOG.info("shard %d is sent %d pushes again", self.peer.index, again)
            self.state = LinkState.REPLAYING
            self.ping()  # announces the end of the replay before its start
            self.send_commit()
        self.send_on()

    def _place(self, header: Header) -> memoryview | None:
        lookup = self._lookups.get(header.ticket) if header.operation is Operation.VECTORS else None
        return None if lookup is None else lookup.buffer(self.peer.index)

    def _send_handshake(self, operation: Operation, payload: bytes) -> None:
        self._send(self._session.header(operation, size_bytes=len(payload)), payload)

    def _send(self, header: Header, *payload: Any) -> None:
        self._writer.add(header, *payload)
        self._flush()

    def _flush(self) -> None:
        if self.connection is not None and self.state is not LinkState.CONNECTING:
            try:
                self._writer.flush(self.connection)
            except OSError:
                # The reading side finds the connection broken too, and closes it.
                return
