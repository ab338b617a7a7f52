"""The pins of a job that follows its data: written once, each after its predecessor, and read in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cpr_contract.pinned_data import DataPin, data_pin_key, data_pins_prefix
from cpr_trainer.checkpoint.format.documents import DamagedError, find_document, read_document, write_once
from cpr_trainer.store import Entry, ExistsError, Store

#: Pins from a restatement to the next. Each restates the segments that are still needed, for those who begin there.
RESTATE_EVERY = 1000
_PIN = re.compile(r"[^/]+/data-pins/(\d{10})\.json")


def restates(number: int) -> bool:
    """Return whether the pin of this number has all segments that are needed before it. The first one has them all."""
    return number % RESTATE_EVERY == 1


def newest_restatement(entries: Iterable[Entry]) -> int:
    """Return the number of the newest pin that restates, among the objects of a job; 1 if there is none."""
    return max(filter(restates, _numbered(entries)), default=1)


def superseded(entries: Iterable[Entry], first_needed: int) -> tuple[Entry, ...]:
    """Return the pins among the objects of a job that have earlier segments alone than that of this number."""
    return tuple(entry for number, entry in _numbered(entries).items() if number <= first_needed)


def _numbered(entries: Iterable[Entry]) -> dict[int, Entry]:
    return {int(found[1]): entry for entry in entries if (found := _PIN.fullmatch(entry.key))}


class PinChain:
    """The pins of a job as far as they were read or written here: `newest` is the last one, and its digest.

    The first pin read restates, and earlier ones are unknown. Pins are deleted that a later restatement supersedes: if
    the next one is, this continues with that restatement. For one thread.
    """

    def __init__(self, store: Store, job_uid: str) -> None:
        self._store = store
        self._job_uid = job_uid
        self.newest: DataPin | None = None
        self._digest = ""
        self._next = 0

    @property
    def next_number(self) -> int:
        """The number of the pin after `newest`. Raises StoreError."""
        if not self._next:
            self._next = self._newest_restatement()
        return self._next

    @property
    def digest(self) -> str:
        """The SHA-256 of the newest pin, empty if there is none."""
        return self._digest

    def read(self, up_to: int | None = None) -> Iterator[DataPin]:
        """Read the next pins in the store, to that of a number or to the last. Raises DamagedError, StoreError.

        A pin up to that number is in the store: it is damaged if it is missing.
        """
        may_lack = self.newest is None
        while up_to is None or self.next_number <= up_to:
            key = data_pin_key(self._job_uid, self.next_number)
            read = find_document(self._store, DataPin, key)
            if read is not None:
                may_lack = True
                yield self._follow(read[0], read[1].digest)
            elif up_to is not None:
                raise DamagedError(key, "is missing")
            elif not may_lack or (newest := self._newest_restatement()) <= self.next_number:
                return  # a reader that has all pins lacks none: no trainer is before the oldest kept anchor
            else:  # pins were deleted since they were listed
                self.newest, self._next = None, newest

    def _newest_restatement(self) -> int:
        return newest_restatement(self._store.list(data_pins_prefix(self._job_uid)))

    def write(self, pin: DataPin) -> DataPin:
        """Write the next pin, and return the one in the store: another leader may have been faster.

        Raises DamagedError, StoreError.
        """
        key = data_pin_key(self._job_uid, self.next_number)
        assert (pin.number, pin.previous) == (self.next_number, self._digest), "a pin follows the newest one"
        try:
            digest = write_once(self._store, key, pin).digest
        except ExistsError:
            pin, ref = read_document(self._store, DataPin, key)
            digest = ref.digest
        return self._follow(pin, digest)

    def _follow(self, pin: DataPin, digest: str) -> DataPin:
        key = data_pin_key(self._job_uid, self.next_number)
        if pin.number != self.next_number or not pin.segments:
            raise DamagedError(key, f"is pin {pin.number} of {len(pin.segments)} segments")
        if self.newest is not None and pin.previous != self._digest:
            raise DamagedError(key, "does not follow the pin before it: that one was written again")
        self.newest, self._digest, self._next = pin, digest, pin.number + 1
        return pin
