"""The pins of a job that follows its data: written once, each after its predecessor, and read in their order."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_contract.manifests import DataPin, PinnedSegment, data_pin_key
from cpr_trainer.checkpoint.format.documents import DamagedError, exists, find_document, read_document, write_once
from cpr_trainer.store import ExistsError, Store

#: Pins from a restatement to the next. Each restates the segments that are still needed, for those who begin there.
RESTATE_EVERY = 1000


def restates(number: int) -> bool:
    """Return whether the pin of this number has all segments that are needed before it. The first one has them all."""
    return number % RESTATE_EVERY == 1


def needed(segments: Sequence[PinnedSegment], oldest_samples: int) -> tuple[PinnedSegment, ...]:
    """Return the segments that a job needs which goes back to no earlier anchor than that of `oldest_samples`."""
    return tuple(segment for segment in segments if segment.stop > oldest_samples)


def newest_restatement(store: Store, job_uid: str) -> int:
    """Return the number of the newest pin that restates, by few requests; 1 if there is none. Raises StoreError."""

    def is_there(place: int) -> bool:
        return exists(store, data_pin_key(job_uid, place * RESTATE_EVERY + 1))

    there, absent = 0, 1
    while is_there(absent):
        there, absent = absent, 2 * absent
    while absent - there > 1:
        middle = (there + absent) // 2
        there, absent = (middle, absent) if is_there(middle) else (there, middle)
    return there * RESTATE_EVERY + 1


class PinChain:
    """The pins of a job as far as they were read or written here: `newest` is the last one, and its digest.

    The first pin read may restate; then earlier ones are unknown. For one thread.
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
            self._next = newest_restatement(self._store, self._job_uid)
        return self._next

    @property
    def digest(self) -> str:
        """The SHA-256 of the newest pin, empty if there is none."""
        return self._digest

    def read(self, up_to: int | None = None) -> list[DataPin]:
        """Read the next pins in the store, to that of a number or to the last. Raises DamagedError, StoreError.

        A pin up to that number is in the store: it is damaged if it is missing.
        """
        found: list[DataPin] = []
        while up_to is None or self.next_number <= up_to:
            key = data_pin_key(self._job_uid, self.next_number)
            read = find_document(self._store, DataPin, key)
            if read is None and up_to is None:
                break
            if read is None:
                raise DamagedError(key, "is missing")
            found.append(self._follow(read[0], read[1].digest))
        return found

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
