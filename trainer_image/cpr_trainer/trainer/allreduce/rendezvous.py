"""How Gloo's addresses get round: over the control connections, on which everybody has proved the job's key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed

_torch: Any = distributed


@dataclass(frozen=True, slots=True)
class Entry:
    """What one trainer puts into the store; `value` is hex."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Entries:
    """What all trainers put there."""

    entries: tuple[Entry, ...]


#: Sends this trainer's entry, and returns those of all. Raises GroupBroken, and what ends a wait.
ExchangeAddresses = Callable[[Entry], Entries]


class AddressStore(_torch.Store):  # type: ignore[misc]
    """The store of one process group. Each trainer sets one entry, before it asks for those of the others."""

    def __init__(self, exchange_addresses: ExchangeAddresses) -> None:
        super().__init__()
        self._exchange_addresses = exchange_addresses
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Put an entry in, and wait for everybody's."""
        entries = self._exchange_addresses(Entry(key, bytes(value).hex())).entries
        self._known = {entry.key: bytes.fromhex(entry.value) for entry in entries}

    def get(self, key: str) -> bytes:
        """Return an entry. Raises KeyError if nobody put it in."""
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: all entries come together. Raises KeyError if one is missing."""
        del timeout
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all these are there."""
        return all(key in self._known for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """Take no time-out: the trade has its own."""

    def has_extended_api(self) -> bool:
        """Return whether there are calls beyond these."""
        return False
