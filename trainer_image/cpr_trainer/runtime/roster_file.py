"""Reads a pod's roster: from a file that the kubelet (or local mode) replaces, and from requests of the operator.

A request brings the same document sooner than the file, and each roster counts once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import ContractError, from_json
from cpr_contract.roster import ShardRoster, TrainerRoster
from cpr_trainer.runtime.environment import check_contract

Roster = TypeVar("Roster", bound=ShardRoster | TrainerRoster)

POLL_S = 0.05
#: Rosters that were sent and not read yet; older ones are dropped.
MOST_OFFERED = 8

_LOG = logging.getLogger(__name__)


class RosterFile(Generic[Roster]):
    """Reads the roster at `path` as `kind`. One thread uses it, except `offer`.

    `newest` is the roster read last, None before the first. `problem` is why the file cannot be read now (missing, half
    written, of a newer contract version), None if it can. `on_read` is called with the file's text after each change.
    """

    def __init__(self, path: Path, kind: type[Roster]) -> None:
        self._path = path
        self._kind = kind
        self._seen: tuple[int, int, int] | None = None
        self._offered: deque[bytes] = deque(maxlen=MOST_OFFERED)
        self._news = threading.Event()
        self.on_read: Callable[[bytes], None] = lambda _: None
        self.newest: Roster | None = None
        self.problem: str | None = "no roster was read yet"

    def offer(self, text: bytes) -> None:
        """Queue a roster that was sent, from any thread, for the next `poll`."""
        self._offered.append(text)
        self._news.set()

    def wait(self, most_s: float) -> None:
        """Wait until a roster is offered, at most this long."""
        if self._news.wait(most_s):
            self._news.clear()

    def poll(self) -> Roster | None:
        """Return the roster if there is a newer one, else None; costs one `stat` if nothing changed.

        Ignores a roster of a newer contract version. Raises ContractVersionError for one that is too old.
        """
        while self._offered:
            try:
                sent = from_json(self._kind, self._offered.popleft())
            except ContractError as error:
                _LOG.warning("a roster that was sent cannot be read: %s", error)
                continue
            # A roster of another version is judged when the file has it.
            if sent.contract in {CONTRACT_VERSION, CONTRACT_VERSION - 1} and self._is_newer(sent):
                self.newest = sent
                return sent
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen == self._seen:
                return None
            text = self._path.read_bytes()
            roster = from_json(self._kind, text)
        except (OSError, ContractError) as error:
            # `_seen` stays: the file is read again at the next poll, until it can be.
            self.problem = str(error)
            return None
        if roster.contract > CONTRACT_VERSION:
            # This process cannot follow a newer operator, and continues under the previous roster.
            self._seen, self.problem = seen, f"the roster is of contract version {roster.contract}"
            _LOG.warning("%s; this image speaks %d: waiting for another roster", self.problem, CONTRACT_VERSION)
            return None
        check_contract(roster.contract, "the roster")
        self._seen, self.problem = seen, None
        self.on_read(text)
        if not self._is_newer(roster):
            return None
        self.newest = roster
        return roster

    def _is_newer(self, roster: Roster) -> bool:
        return self.newest is None or roster.counters.roster > self.newest.counters.roster

    def watch(self, stop: threading.Event) -> Iterator[Roster]:
        """Yield each newer roster as it comes, until `stop` is set."""
        while not stop.is_set():
            roster = self.poll()
            if roster is not None:
                yield roster
            self.wait(POLL_S)
