"""Data that arrives: what one trainer has read of its pins, and the leader's looks, which write them.

The order of samples follows from the pins alone. Every trainer reads them from the store, the leader
as well: its looks have a state of their own, and run in another thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import time

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DataPin, PinnedSegment, data_pin_key
from cpr_contract.spec import TABLE_FORMATS, DataSpec, FollowSpec, JobSpec
from cpr_trainer.checkpoint.format.data_pins import PinChain, needed, restates
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.data.arrivals import compare_looks, due_voids
from cpr_trainer.data.dataset import Layout
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import format_of, indices_of_manifest, manifest_of_indices
from cpr_trainer.data.reader import index_each, layout_of
from cpr_trainer.data.schema import columns_of
from cpr_trainer.data.stream_order import StreamOrder
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store, StoreError, Uris, Version

_LOG = logging.getLogger(__name__)

#: Indexes files. Raises DataError, and StoreError.
IndexFiles = Callable[[Sequence[str]], Sequence[Index]]


class FollowedData:
    """The pins that were read: their `order`, and the `names` of all pinned files. For one thread.

    `segments` are those since the newest restatement, and those that it has.
    """

    def __init__(self, data: DataSpec, job_uid: str, store: Store) -> None:
        assert data.follow is not None, "only a job with data.follow has pins"
        self.order = StreamOrder(data)
        self.segments: tuple[PinnedSegment, ...] = ()
        self.names: set[str] = set()
        self._data = data
        self._job_uid = job_uid
        self._chain = PinChain(store, job_uid)

    @property
    def number(self) -> int:
        """The number of the newest pin read, 0 if there is none."""
        return 0 if self._chain.newest is None else self._chain.newest.number

    def read(self, up_to: int | None = None) -> list[Index]:
        """Read the next pins, to that of a number or to the last; return their files. Raises as `PinChain.read`."""
        return [index for pin in self._chain.read(up_to) for index in self._take(pin)]

    def pin(  # noqa: PLR0913 -- a pin
        self,
        files: Sequence[Index],
        voids: int,
        *,
        late: Sequence[str] = (),
        end: bool = False,
        oldest_samples: int = 0,
        listed: Sequence[str] = (),
    ) -> DataPin:
        """Pin these files as the next segment, and voids after their rows; return the pin of that number in the store.

        oldest_samples: those of the oldest anchor that is kept. listed: all files that a look found. Raises as
        `PinChain.write`.
        """
        grown = self.order.followed_by(_layout(files), voids)
        manifest = manifest_of_indices(self._job_uid, self._data.uri or "", files)
        own, number = grown.segments[-1], self._chain.next_number
        segments: tuple[PinnedSegment, ...] = (PinnedSegment(own.number, own.first_sample, own.rows, voids, manifest),)
        names: tuple[str, ...] = ()
        if restates(number):
            segments = (*needed(self.segments, oldest_samples), *segments)
            restated = {uri for segment in segments for uri in segment.files.uris}
            names = tuple(sorted(self.names.intersection(listed) - restated))
        pin = self._chain.write(
            DataPin(
                CONTRACT_VERSION, self._job_uid, number, self._chain.digest, segments, names, late=tuple(late), end=end
            )
        )
        self._take(pin)
        return pin

    def _take(self, pin: DataPin) -> list[Index]:
        """Add the segments of a pin that are not known yet; return their files."""
        found: list[Index] = []
        for segment in pin.segments[-1:] if self.order.segments else pin.segments:
            indices = indices_of_manifest(segment.files)
            first = segment.number, segment.first_sample
            self.order = self.order.followed_by(_layout(indices), segment.voids, first=first)
            added = self.order.segments[-1]
            if (added.number, added.first_sample, added.rows) != (*first, segment.rows):
                raise DamagedError(data_pin_key(self._job_uid, pin.number), "does not continue the samples before it")
            self.names.update(segment.files.uris)
            found += indices
        self.segments = pin.segments if restates(pin.number) else (*self.segments, *pin.segments)
        self.names.update(pin.names)
        if pin.end:
            self.order = self.order.ended()
        return found


def _layout(files: Sequence[Index]) -> Layout | None:
    return layout_of(files) if any(index.blocks for index in files) else None


class DataLooks:
    """Looks for new files, and pins them. `index` indexes files.

    `oldest_samples` returns the samples of the oldest anchor that is kept.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- the data, and where pins go
        self,
        data: DataSpec,
        job_uid: str,
        store: Store,
        files: Uris,
        index: IndexFiles,
        oldest_samples: Callable[[], int] = lambda: 0,
    ) -> None:
        assert data.follow is not None, "only files that are followed are looked for"
        assert data.uri is not None, "files have a place"
        self.followed = FollowedData(data, job_uid, store)
        self._follow: FollowSpec = data.follow
        self._uri = data.uri
        self._files = files
        self._index = index
        self._oldest_samples = oldest_samples
        self._before: dict[str, Version] = {}
        self._indexed: dict[str, Index] = {}

    @classmethod
    def of(cls, job: JobSpec, store: Store, files: Uris, oldest_samples: Callable[[], int] = lambda: 0) -> DataLooks:
        """Return the looks of a job at the files of its data."""
        form = format_of(job.data, columns_of(job.data, job.model), files)
        return cls(job.data, job.job_uid, store, files, lambda uris: index_each(uris, form), oldest_samples)

    @property
    def every_s(self) -> float:
        """Seconds from one look to the next."""
        return self._follow.every_s

    def look(self, *, waits: bool, now_s: float) -> DataPin | None:
        """Look for files once; return the pin that was due, None if none was. `now_s` is the time since the epoch.

        waits: all trainers have trained all known batches. Raises DataError for a file that cannot be used,
        DamagedError, and StoreError.
        """
        followed = self.followed
        followed.read()
        if followed.order.has_ended:
            return None
        listed = self._files.find(self._uri, may_be_empty=True)
        now = self._versions(uri for uri in listed if uri not in followed.names)
        arrived = compare_looks(self._before, now, max(followed.names, default=""))
        self._before = now
        indices = self._index_settled(arrived.settled)
        rows = sum(block.rows for index in indices for block in index.blocks)
        known = followed.order.known_samples
        more = arrived.more or len(indices) < len(arrived.settled)  # one that changed since will settle again
        idle = waits and not rows and not more and self._follow.idle == "Finish"
        over = self._follow.until_s is not None and now_s >= self._follow.until_s
        ends = (idle or over) and known + rows > 0
        voids = due_voids(known, rows, followed.order.batch_size, waits=waits, more=more, ends=ends)
        if voids is None:
            return None
        pin = followed.pin(
            indices,
            voids,
            late=arrived.late,
            end=ends,
            oldest_samples=self._oldest_samples(),
            listed=listed,
        )
        self._indexed.clear()
        return pin

    def _index_settled(self, uris: Sequence[str]) -> list[Index]:
        """Return the indices of settled files, each read once, without those that changed after the look.

        Raises DataError for a file that is damaged and did not change.
        """
        new = [uri for uri in uris if uri not in self._indexed]
        try:
            self._indexed |= {index.file.uri: index for index in (self._index(new) if new else ())}
        except DataError:
            if self._versions(uris) == {uri: self._before[uri] for uri in uris}:
                raise
            return []
        current = [uri for uri in uris if self._indexed[uri].file.version == self._before[uri]]
        self._indexed = {uri: self._indexed[uri] for uri in current}
        return list(self._indexed.values())

    def _versions(self, uris: Iterable[str]) -> dict[str, Version]:
        """Return the versions of the files that are still there."""
        found: dict[str, Version] = {}
        for uri in uris:
            with suppress(DataError):
                found[uri] = self._files.version(uri)
        return found


class LookThread:
    """The leader's looks, on a thread of their own. `newest` is the number of the newest pin in the store.

    `waits_at` is the number of the pin up to which all trainers have trained, 0 while they train.
    """

    def __init__(self, looks: DataLooks) -> None:
        self.newest = 0
        self.waits_at = 0
        self._looks = looks
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="data-looks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, on the thread that trains."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End after the present look, which is not waited for."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
            except StoreError as error:
                _LOG.warning("the data is not looked at: %s", error)
            except BaseException as error:  # noqa: BLE001 -- raised on the main thread
                self._failure = error
                return
            self._ended.wait(self._looks.every_s)

    def _look(self) -> None:
        followed = self._looks.followed
        waits = 0 < followed.number == self.waits_at
        pin = self._looks.look(waits=waits, now_s=time())
        if pin is not None:
            files = pin.segments[-1].files.uris
            _LOG.info("pin %d has %d new files, %d of them late", pin.number, len(files), len(pin.late))
        self.newest = followed.number


def check_follow(job: JobSpec) -> None:
    """Raise BadSpecError if a job cannot follow its data."""
    data, evaluation = job.data, job.evaluation
    refused = {
        "data.uri: absent": data.uri is None or data.entrypoint is not None,
        "data.epochs above 1": data.epochs not in {None, 1},
        "data.samples": data.samples is not None,
        "data.holdOut": data.hold_out > 0,
        "evaluation of held-out rows": evaluation is not None and evaluation.uri is None,
        "evaluation.earlyStop": evaluation is not None and evaluation.early_stop is not None,
        "ids: Vocabulary": any(table.ids == "Vocabulary" for table in job.model.tables),
        f"data.format: {data.format}": data.format in TABLE_FORMATS,
        "trainers.denseSync other than AllReduce": not job.lockstep,
    }
    for field, is_stated in refused.items():
        if is_stated:
            raise BadSpecError(
                f"data.follow and {field} do not go together.",
                "State data.uri, one epoch and AllReduce, and leave out the other field, or data.follow.",
            )
