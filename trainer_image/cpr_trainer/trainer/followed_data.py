"""Data that arrives: what one trainer has read of its pins, and the leader's looks, which write them.

The order of samples follows from the pins alone. Every trainer reads them from the store, the leader
as well: its looks have a state of their own, and run in another thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from time import time

from cpr_contract import CONTRACT_VERSION
from cpr_contract.limits import MAX_FILE_NAME, MAX_LATE_FILES
from cpr_contract.pinned_data import DataPin, PinnedData, PinnedSegment, TableVersion, data_pin_key
from cpr_contract.spec import TABLE_FORMATS, DataSpec, FollowSpec, JobSpec
from cpr_trainer.checkpoint.format.data_pins import PinChain, restates
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.data.arrivals import Arrivals, Pinned, due_voids
from cpr_trainer.data.dataset import Layout
from cpr_trainer.data.files import Index
from cpr_trainer.data.kafka.offsets import newest_ranges
from cpr_trainer.data.open import arrivals_of, indices_of_manifest, manifest_of_indices
from cpr_trainer.data.reader import layout_of
from cpr_trainer.data.schema import columns_of
from cpr_trainer.data.stream_order import StreamOrder
from cpr_trainer.data.tables import is_metadata_file
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store, StoreError, Uris

_LOG = logging.getLogger(__name__)


class FollowedData:
    """The pins that were read: their `order`, and the `names` of pinned files. For one thread.

    `segments` are those that a kept anchor may need, and `order` has no others. `names` lack files that a listing no
    longer had at the newest restatement. The files of a topic are ranges of offsets, and `names` has the last one of
    each partition. It has no file of a table: the version `table` is that up to which its log was read.
    """

    def __init__(self, data: DataSpec, job_uid: str, store: Store) -> None:
        assert data.follow is not None, "only a job with data.follow has pins"
        self.order = StreamOrder(data)
        self.segments: tuple[PinnedSegment, ...] = ()
        self.names: set[str] = set()
        self.table: TableVersion | None = None
        self._found: list[Index] = []
        self._late: tuple[str, ...] = ()
        self._data = data
        self._job_uid = job_uid
        self._chain = PinChain(store, job_uid)

    @property
    def number(self) -> int:
        """The number of the newest pin read, 0 if there is none."""
        return 0 if self._chain.newest is None else self._chain.newest.number

    @property
    def pinned(self) -> PinnedData | None:
        """The data of all pins so far, for reports; None without a pin."""
        pin = self._chain.newest
        if pin is None:
            return None
        voids = pin.voids_before + sum(segment.voids for segment in pin.segments)
        late_files = pin.late_before + len(pin.late)
        samples = self.order.known_samples
        return PinnedData(pin.number, samples, voids, pin.pinned_at, pin.end, late_files, self._late)

    def read(self, up_to: int | None = None) -> list[Index]:
        """Read the next pins, to that of a number or to the last; return their files. Raises as `PinChain.read`.

        Once it has succeeded, it returns those of earlier calls as well that raised an error.
        """
        for pin in self._chain.read(up_to):
            self._found += self._take(pin)
        found, self._found = self._found, []
        return found

    def needed_names(self, oldest_samples: int) -> Iterator[str]:
        """Yield the files with samples after those of the oldest anchor that is kept."""
        return (uri for each in self.segments if each.stop > oldest_samples for uri in each.files.uris)

    def pin(  # noqa: PLR0913 -- a pin
        self,
        files: Sequence[Index],
        voids: int,
        *,
        late: Sequence[str] = (),
        end: bool = False,
        oldest_samples: int = 0,
        listed: Collection[str] = (),
        table: TableVersion | None = None,
        at: float = 0.0,
    ) -> DataPin:
        """Pin these files as the next segment, and voids after their rows; return the pin of that number in the store.

        oldest_samples: those of the oldest anchor that is kept. listed: all files that a look found. table: the
        version up to which it read the log. at: the time, in seconds since the epoch. Raises as `PinChain.write`.
        """
        grown = self.order.followed_by(_layout(files), voids)
        manifest = manifest_of_indices(self._job_uid, self._data.uri or "", files, table=table or self.table)
        own, number = grown.segments[-1], self._chain.next_number
        segments: tuple[PinnedSegment, ...] = (PinnedSegment(own.number, own.first_sample, own.rows, voids, manifest),)
        needed = tuple(segment for segment in self.segments if segment.stop > oldest_samples)
        names: tuple[str, ...] = ()
        if restates(number):
            segments = (*needed, *segments)
            restated = {uri for segment in segments for uri in segment.files.uris}
            # The last name stays: later files with names before it are late.
            names = tuple(sorted(self.names.intersection((*listed, max(self.names, default=""))) - restated))
        before = self.pinned
        pin = self._chain.write(
            DataPin(
                contract=CONTRACT_VERSION,
                job_uid=self._job_uid,
                number=number,
                previous=self._chain.digest,
                segments=segments,
                first_needed=needed[0].number if needed else own.number,
                names=names,
                late=tuple(late),
                end=end,
                voids_before=0 if before is None else before.voids - sum(each.voids for each in segments[:-1]),
                late_before=0 if before is None else before.late_files,
                pinned_at=at,
            )
        )
        self._take(pin)
        return pin

    def _take(self, pin: DataPin) -> list[Index]:
        """Add the segments of a pin that are not known yet, and drop those that are not needed; return new files."""
        found: list[Index] = []
        last = self.segments[-1].number if self.segments else -1
        self.order = self.order.since(pin.first_needed)
        self.segments = tuple(segment for segment in self.segments if segment.number >= pin.first_needed)
        if restates(pin.number):
            self.names = {*pin.names, *(uri for segment in self.segments for uri in segment.files.uris)}
        for segment in pin.segments:
            if segment.number <= last:
                continue
            indices = indices_of_manifest(segment.files)
            first = segment.number, segment.first_sample
            self.order = self.order.followed_by(_layout(indices), segment.voids, first=first)
            added = self.order.segments[-1]
            if (added.number, added.first_sample, added.rows) != (*first, segment.rows):
                raise DamagedError(data_pin_key(self._job_uid, pin.number), "does not continue the samples before it")
            self.segments += (segment,)
            self.names.update(segment.files.uris)
            found += indices
        self._late = (*self._late, *(name[-MAX_FILE_NAME:] for name in pin.late))[-MAX_LATE_FILES:]
        if self._data.format == "Kafka":
            self.names = newest_ranges(self.names)
        elif self._data.format in TABLE_FORMATS:
            self.names.clear()
        self.table = pin.segments[-1].files.table
        if pin.end:
            self.order = self.order.ended()
        return found


def _layout(files: Sequence[Index]) -> Layout | None:
    return layout_of(files) if any(index.blocks for index in files) else None


class DataLooks:
    """Looks for new data in `arrivals`, and pins it.

    `oldest_samples` returns the samples of the oldest anchor that is kept. `is_behind` is True after a look that left
    data which can be read at once.
    """

    def __init__(
        self,
        data: DataSpec,
        job_uid: str,
        store: Store,
        arrivals: Arrivals,
        oldest_samples: Callable[[], int] = lambda: 0,
    ) -> None:
        assert data.follow is not None, "only data that is followed is looked for"
        self.followed = FollowedData(data, job_uid, store)
        self.is_behind = False
        self._follow: FollowSpec = data.follow
        self._arrivals = arrivals
        self._oldest_samples = oldest_samples

    @classmethod
    def of(cls, job: JobSpec, store: Store, files: Uris, oldest_samples: Callable[[], int] = lambda: 0) -> DataLooks:
        """Return the looks of a job at its data."""
        arrivals = arrivals_of(job.data, columns_of(job.data, job.model), files)
        return cls(job.data, job.job_uid, store, arrivals, oldest_samples)

    @property
    def every_s(self) -> float:
        """Seconds from one look to the next."""
        return self._follow.every_s

    def look(self, *, waits: bool, now_s: float) -> DataPin | None:
        """Look for data once; return the pin that was due, None if none was. `now_s` is the time since the epoch.

        waits: all trainers have trained all known batches. Raises DataError for data that cannot be used,
        DamagedError, and StoreError.
        """
        followed, before = self.followed, self.followed.number
        followed.read()
        waits = waits and followed.number == before  # another leader's pin is not trained yet
        if followed.order.has_ended:
            return None
        oldest_samples = self._oldest_samples()
        arrived = self._arrivals.look(Pinned(followed.names, followed.needed_names(oldest_samples), followed.table))
        self.is_behind = arrived.is_behind
        rows = sum(block.rows for index in arrived.indices for block in index.blocks)
        known = followed.order.known_samples
        idle = waits and not rows and not arrived.more and self._follow.idle == "Finish"
        over = self._follow.until_s is not None and now_s >= self._follow.until_s
        ends = (idle or over) and known + rows > 0
        moved = followed.table is not None and arrived.table not in {None, followed.table}
        batch_size = followed.order.batch_size
        voids = due_voids(known, rows, batch_size, waits=waits, more=arrived.more, moved=moved, ends=ends)
        if voids is None:
            return None
        return followed.pin(
            arrived.indices,
            voids,
            late=arrived.late,
            end=ends,
            oldest_samples=oldest_samples,
            listed=arrived.listed,
            table=arrived.table,
            at=now_s,
        )


class LookThread:
    """The leader's looks, on a thread of their own. `newest` is the number of the newest pin in the store.

    `pinned` is the data of all pins in the store, as of the last look; None before the first one.
    `waits_at` is the number of the pin up to which all trainers have trained, 0 while they train.
    """

    def __init__(self, looks: DataLooks) -> None:
        self.newest = 0
        self.pinned: PinnedData | None = None
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
            pause_s = self._looks.every_s
            try:
                self.look()
                pause_s = 0.0 if self._looks.is_behind else pause_s
            except StoreError as error:
                _LOG.warning("the data is not looked at: %s", error)
            except BaseException as error:  # noqa: BLE001 -- raised on the main thread
                self._failure = error
                return
            self._ended.wait(pause_s)

    def look(self) -> None:
        """Look once, as the thread does. Raises as `DataLooks.look` does."""
        followed = self._looks.followed
        waits = 0 < followed.number == self.waits_at
        pin = self._looks.look(waits=waits, now_s=time())
        if pin is not None:
            new = pin.segments[-1]
            counts = pin.number, new.rows, len(new.files.uris), len(pin.late)
            _LOG.info("pin %d has %d new rows in %d files, %d of them late", *counts)
        self.pinned = followed.pinned
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
        "a metadata file as data.uri": data.format == "Iceberg" and is_metadata_file(data.uri or ""),
        "trainers.denseSync other than AllReduce": not job.lockstep,
    }
    for field, is_stated in refused.items():
        if is_stated:
            raise BadSpecError(
                f"data.follow and {field} do not go together.",
                "State data.uri, one epoch and AllReduce, and leave out the other field, or data.follow.",
            )
