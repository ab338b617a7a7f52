"""The thread that owns a trainer's connections: it polls sockets, passes events to links, and follows rosters.

`LinkStates` has what other threads read of the links.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import threading
from collections.abc import Callable, Iterable

from cpr_contract.roster import TrainerRoster
from cpr_contract.spec import samples_at
from cpr_trainer.exchange.handshake import Session
from cpr_trainer.exchange.link import Link
from cpr_trainer.exchange.lookup import LinkState, SaveState
from cpr_trainer.runtime import Stream

_LOG = logging.getLogger(__name__)

TICK_S = 0.05


class LinkLoop:
    """Runs the links of one trainer. `changed` guards all of them, and is notified after each event.

    `links` are in the order of the shards; empty before the first roster. `on_links` is called with new links before
    they are used.
    """

    def __init__(self, session: Session, clock: Callable[[], float], rng: random.Random) -> None:
        self.changed = threading.Condition()
        self.links: tuple[Link, ...] = ()
        self.on_links: Callable[[tuple[Link, ...]], None] = lambda _: None
        self._session = session
        self._clock = clock
        self._rng = rng
        self._new_roster: TrainerRoster | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._next_tick = 0.0
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Link, tuple[Stream, int]] = {}
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.settimeout(0.0)
        self._wake_receiver.settimeout(0.0)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def follow(self, roster: TrainerRoster) -> None:
        """Return once the links are those of `roster`. Call it with the lock held."""
        self._new_roster = roster
        self.wake()
        self.wait_for(lambda: self._new_roster is None, None)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait with the lock held until `condition()`; return whether it was met in time."""
        done = self.changed.wait_for(lambda: self._failure is not None or condition(), timeout_s)
        if self._failure is not None:
            raise RuntimeError(f"the exchange's thread ended: {self._failure!r}") from self._failure
        return done

    def wake(self) -> None:
        """Have the thread check all links now."""
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are on their way
            self._wake_sender.send(b"\0")

    def close(self) -> None:
        """End the thread and close all connections; does nothing the second time."""
        self._closing = True
        if self._thread.is_alive():
            with contextlib.suppress(OSError):  # it has just ended
                self.wake()
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                events = self._selector.select(TICK_S)
                with self.changed:
                    self._tick(events)
                    self.changed.notify_all()
        except BaseException as error:  # noqa: BLE001 -- the caller's thread raises it
            _LOG.exception("the exchange's thread ended")
            with self.changed:
                self._failure = error
                self.changed.notify_all()
        finally:
            for link in self.links:
                link.close()
            self._selector.close()
            self._wake_sender.close()
            self._wake_receiver.close()

    def _tick(self, events: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        now = self._clock()
        touched = self._dispatch(events, now)
        if self._new_roster is not None:
            self._adopt(self._new_roster, now)
            self._new_roster = None
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            touched = self.links
            for link in self.links:
                link.tick(now)
        for link in touched:
            self._forget_closed(link)
        for link in touched:
            self._watch(link)

    def _dispatch(self, events: Iterable[tuple[selectors.SelectorKey, int]], now: float) -> tuple[Link, ...]:
        """Pass events to their links, and return these."""
        links: list[Link] = []
        for key, mask in events:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    while self._wake_receiver.recv(4096):
                        pass
                self._next_tick = now
                continue
            link: Link = key.data
            links.append(link)
            if mask & selectors.EVENT_WRITE:
                link.on_writable(now)
            if mask & selectors.EVENT_READ:
                link.on_readable(now)
        return tuple(links)

    def _adopt(self, roster: TrainerRoster, now: float) -> None:
        new_generation = roster.counters.generation != self._session.counters.generation
        self._session.counters = roster.counters
        if new_generation:
            self._session.cut_step = 0  # the next cut may be earlier, and shards would ignore it after this one
            self._session.committed = -1
        peers = sorted(roster.shards, key=lambda peer: peer.index)
        first = not self.links
        if first:
            self.links = tuple(Link(self._session, peer, self._rng, now) for peer in peers)
        may_skip = {each.shard: self._session.last_step(each.until) for each in roster.allowances}
        for link, peer in zip(self.links, peers, strict=True):
            link.follow(peer, now, may_skip.get(peer.index, 0))
            if new_generation:
                link.start_over()
        if first:
            self.on_links(self.links)
        self._next_tick = now

    def _forget_closed(self, link: Link) -> None:
        """Remove a closed socket from the selector, before another link's socket gets its descriptor."""
        current = self._watched.get(link)
        if current is not None and current[0] is not link.connection:
            self._selector.unregister(current[0])
            del self._watched[link]

    def _watch(self, link: Link) -> None:
        """Register the events that the link waits for."""
        if link.connection is None:
            return
        desired = (link.connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0))
        current = self._watched.get(link)
        if current is None:
            self._selector.register(*desired, link)
        elif desired != current:
            self._selector.modify(*desired, link)
        self._watched[link] = desired


class LinkStates:
    """The states of a trainer's links, as other threads read them."""

    def __init__(self, loop: LinkLoop, session: Session, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._session = session
        self._clock = clock

    def protected(self) -> tuple[int, ...]:
        """Return, for each shard, the samples up to which parity holds the pushes of all ranks; -1: none."""
        with self._loop.changed:
            session = self._session
            return tuple(
                -1 if link.protected < 0 else samples_at(link.protected, session.batch_size, session.total_samples)
                for link in self._loop.links
            )

    def was_skipped(self, step: int) -> bool:
        """Return whether `step` was trained without a shard."""
        with self._loop.changed:
            return any(step <= link.skipped for link in self._loop.links)

    def applied(self) -> tuple[int, ...]:
        """Return, for each shard, the last step of this trainer that it applied; -1 while unknown."""
        with self._loop.changed:
            return tuple(link.applied for link in self._loop.links)

    def counted(self) -> tuple[int, ...]:
        """Return, for each shard, the step up to which this rank's row updates are counted; -1 while unknown."""
        with self._loop.changed:
            return tuple(link.counted for link in self._loop.links)

    def saved(self) -> tuple[SaveState, ...]:
        """Return each shard's newest committed save."""
        with self._loop.changed:
            return tuple(link.saved for link in self._loop.links)

    def process_numbers(self) -> tuple[int, ...]:
        """Return the number of processes that each shard's incarnation has had by now; 0 while unknown."""
        with self._loop.changed:
            return tuple(link.process_number for link in self._loop.links)

    def unavailable(self, step: int | None = None) -> tuple[int, ...]:
        """Return the shards that are unreachable or do not serve this generation, except those that `step` may skip."""
        with self._loop.changed:
            links = (link for link in self._loop.links if link.state is not LinkState.READY)
            return tuple(link.peer.index for link in links if step is None or not link.can_skip(step))

    def unresponsive(self, for_s: float) -> tuple[int, ...]:
        """Return the shards that have an address and sent nothing for the last `for_s` seconds."""
        with self._loop.changed:
            now = self._clock()
            return tuple(link.peer.index for link in self._loop.links if link.unresponsive(now, for_s))

    def problems(self) -> tuple[str, ...]:
        """Return the reasons of shards that refuse this trainer."""
        with self._loop.changed:
            return tuple(link.problem for link in self._loop.links if link.problem is not None)

    @property
    def newest_roster_seen(self) -> int:
        """The highest `roster` counter that any shard has named."""
        return self._session.newest_roster_seen
