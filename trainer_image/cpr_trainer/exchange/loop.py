"""The thread that owns a trainer's connections: it waits for sockets, hands events to links, and follows rosters."""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import threading
from collections.abc import Callable, Iterable

from cpr_contract.roster import TrainerRoster
from cpr_trainer.exchange.handshake import Session
from cpr_trainer.exchange.link import Link

_LOG = logging.getLogger(__name__)

TICK_S = 0.05


class LinkLoop:
    """Runs the links of one trainer. `changed` guards them all, and is notified whenever something happened.

    `links` are in the order of the shards; empty before the first roster. `on_links` is called once they are there,
    before anything else happens to them.
    """

    def __init__(self, session: Session, clock: Callable[[], float], rng: random.Random) -> None:
        self.changed = threading.Condition()
        self.links: tuple[Link, ...] = ()
        self.on_links: Callable[[tuple[Link, ...]], None] = lambda _: None
        self._session = session
        self._clock = clock
        self._rng = rng
        self._wanted: TrainerRoster | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._next_tick = 0.0
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Link, tuple[socket.socket, int]] = {}
        self._bell, self._ear = socket.socketpair()
        self._bell.settimeout(0.0)
        self._ear.settimeout(0.0)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def follow(self, roster: TrainerRoster) -> None:
        """Return once the links are those of `roster`. Call it with the lock held."""
        self._wanted = roster
        self.wake()
        self.wait_for(lambda: self._wanted is None, None)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait with the lock held until `condition()`; False if it did not come in time."""
        done = self.changed.wait_for(lambda: self._failure is not None or condition(), timeout_s)
        if self._failure is not None:
            raise RuntimeError("the exchange's thread ended") from self._failure
        return done

    def wake(self) -> None:
        """Make the thread look at all links now."""
        with contextlib.suppress(BlockingIOError):  # it is full of wake-ups already
            self._bell.send(b"\0")

    def close(self) -> None:
        """End the thread and close all connections; a second time changes nothing."""
        self._closing = True
        if self._thread.is_alive():
            with contextlib.suppress(OSError):  # it ended this very moment
                self.wake()
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                events = self._selector.select(TICK_S)
                with self.changed:
                    self._turn(events)
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
            self._bell.close()
            self._ear.close()

    def _turn(self, events: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        now = self._clock()
        touched = self._dispatch(events, now)
        if self._wanted is not None:
            self._adopt(self._wanted, now)
            self._wanted = None
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
        """Hand events to their links, and return these."""
        links: list[Link] = []
        for key, mask in events:
            if key.data is None:
                self._hush()
                self._next_tick = now
                continue
            link: Link = key.data
            links.append(link)
            if mask & selectors.EVENT_WRITE:
                link.on_writable(now)
            if mask & selectors.EVENT_READ:
                link.on_readable(now)
        return tuple(links)

    def _hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._ear.recv(4096):
                pass

    def _adopt(self, roster: TrainerRoster, now: float) -> None:
        new_generation = roster.counters.generation != self._session.counters.generation
        self._session.counters = roster.counters
        if new_generation:
            self._session.cut_step = 0  # shards that took it over would pass over the next one, which comes earlier
        peers = sorted(roster.shards, key=lambda peer: peer.index)
        first = not self.links
        if first:
            self.links = tuple(Link(self._session, peer, self._rng, now) for peer in peers)
        spare = {each.shard: self._session.last_step(each.until) for each in roster.allowances}
        for link, peer in zip(self.links, peers, strict=True):
            link.follow(peer, now, spare.get(peer.index, 0))
            if new_generation:
                link.start_over()
        if first:
            self.on_links(self.links)
        self._next_tick = now

    def _forget_closed(self, link: Link) -> None:
        """Drop a closed socket from the selector, before another link's socket takes its number."""
        current = self._watched.get(link)
        if current is not None and current[0] is not link.connection:
            self._selector.unregister(current[0])
            del self._watched[link]

    def _watch(self, link: Link) -> None:
        """Let the selector know what the link waits for."""
        if link.connection is None:
            return
        wanted = (link.connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0))
        current = self._watched.get(link)
        if current is None:
            self._selector.register(*wanted, link)
        elif wanted != current:
            self._selector.modify(*wanted, link)
        self._watched[link] = wanted
