"""The roster as a file: the kubelet (or local mode) replaces it, the process notices within a poll.

The operator may send one ahead of the file. It is the same document, and counts once.
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
#: Rosters that were sent and not looked at yet; the newest matter.
MOST_OFFERED = 8

_LOG = logging.getLogger(__name__)


class RosterFile(Generic[Roster]):
    """Reads the roster at `path` as `kind`. One thread uses it, but for `offer`.

    `newest` is the roster read last, None before the first. `problem` says why the file cannot be read now (missing,
    half written, of a newer contract version), None if it can. `on_read` gets the file's text each time that it has
    changed.
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
        """Give it a roster that was sent, by any thread; the next `poll` looks at it first."""
        self._offered.append(text)
        self._news.set()

    def wait(self, most_s: float) -> None:
        """Wait until a roster is offered, at most so long."""
        if self._news.wait(most_s):
            self._news.clear()

    def poll(self) -> Roster | None:
        """Return the roster if a newer one is there, else None; costs one `stat` if nothing changed.

        One of a newer contract version is waited out. Raises ContractVersionError if it is too old.
        """
        while self._offered:
            try:
                sent = from_json(self._kind, self._offered.popleft())
            except ContractError as error:
                _LOG.warning("a roster that was sent cannot be read: %s", error)
                continue
            # The file says the same soon, and tells what is wrong with the version.
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
            # A newer operator writes it, which this process cannot follow; its work goes on under the roster before.
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
