"""What the first leader finds, and what is the same for every trainer as long as the job lives.

That is the data that the job trains, vocabularies of its tables, and how many workers trainers have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DataManifest, WorkersManifest
from cpr_trainer.checkpoint.anchor.pruning import listing_pause_s
from cpr_trainer.checkpoint.format.records import freeze, read_data, read_vocabularies, read_workers, write_vocabularies
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import Find, FindVocabularies, indices_of_manifest, manifest_of_indices
from cpr_trainer.data.vocabularies import Vocabularies
from cpr_trainer.errors import DataError
from cpr_trainer.store import Store, StoreError, Uris
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.store_retry import poll_and_sleep
from cpr_trainer.trainer.worker_tuning import WorkerChoice

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: A follower asks the store so often whether the leader has frozen the data.
_ASK_SLICES = 20
#: New files are looked for no more often; a listing of many files is put off longer.
_LIST_EVERY_S = 600.0


class FrozenInputs:
    """One trainer's view of what its job keeps. `leads` tells whether it is the leader by the newest roster.

    `frozen` is what all train, None for data without files. `new_files` counts those that `uri` names and which came
    later, as the leader finds them when it starts and by `count_new_files`; `tell` is told of them. With `evaluates` it
    is the data that the job is scored on, and nobody counts. `known` are the vocabularies of tables. `workers` is what
    was measured, None where nothing is.
    """

    def __init__(  # noqa: PLR0913 -- whose data, of what kind, and with whom
        self,
        job_uid: str,
        uri: str | None,
        leads: Callable[[], bool],
        poll_interrupts: PollInterrupts,
        tell: Callable[[int], None] = lambda _: None,
        *,
        evaluates: bool = False,
    ) -> None:
        self.frozen: DataManifest | None = None
        self.known: Vocabularies = {}
        self.workers: WorkersManifest | None = None
        self.new_files = 0
        self._job_uid = job_uid
        self._uri = uri or ""
        self._leads = leads
        self._poll_interrupts = poll_interrupts
        self._tell = tell
        self._evaluates = evaluates
        self._counts = bool(uri) and not evaluates
        self._files: Uris | None = None
        self._list_at_s = 0.0

    def indices(self, store: Store, files: Uris, find: Find) -> Sequence[Index]:
        """Return the files of the data and their blocks; the first leader finds and pins them, all others wait for it.

        Raises DataError, DamagedError, StoreError, and what `poll_interrupts` raises.
        """

        def read() -> DataManifest | None:
            return read_data(store, self._job_uid, evaluates=self._evaluates)

        def find_and_pin() -> DataManifest:
            return freeze(store, manifest_of_indices(self._job_uid, self._uri, find(), evaluates=self._evaluates))

        if (frozen := read()) is None:
            frozen = self._agree(read, find_and_pin)
        elif self._counts and self._leads():
            self._count(files, frozen)
        if self._evaluates:
            _LOG.info("is scored on %d files", len(frozen.uris))
        else:
            _LOG.info("trains %d files, and leaves %d out that came later", len(frozen.uris), self.new_files)
        self.frozen, self._files = frozen, files
        return indices_of_manifest(frozen)

    def vocabularies(self, store: Store, find: FindVocabularies) -> Vocabularies:
        """Return the vocabularies of tables; the first leader finds and keeps them, all others wait for it.

        Raises as `indices` does.
        """

        def find_and_keep() -> Vocabularies | None:
            write_vocabularies(store, self._job_uid, find(self._poll_interrupts))
            return read_vocabularies(store, self._job_uid)

        kept = self._agree(lambda: read_vocabularies(store, self._job_uid), find_and_keep)
        for table, each in kept.items():
            _LOG.info("table %s has a vocabulary of %d values", table, len(each))
        self.known = kept
        return kept

    def find_workers(self, store: Store, measure: Callable[[PollInterrupts], WorkerChoice]) -> WorkerChoice:
        """Return how many workers trainers have; the first leader measures and pins it, all others wait for it.

        So a process that is to compute a step again has the number that the step was computed with. Raises as `indices`
        does.
        """

        def measure_and_pin() -> WorkersManifest:
            found = measure(self._poll_interrupts)
            _LOG.info("measured: %d workers, %s", found.count, found.reason)
            return freeze(store, WorkersManifest(CONTRACT_VERSION, self._job_uid, found.count, found.reason))

        self.workers = self._agree(lambda: read_workers(store, self._job_uid), measure_and_pin)
        return WorkerChoice(self.workers.workers, self.workers.reason)

    def _agree(self, read: Callable[[], T | None], find: Callable[[], T | None]) -> T:
        """Return what `read` returns once it is there. The leader makes it with `find`, all others wait for it."""
        while (known := read()) is None:
            if self._leads():
                if (found := find()) is not None:
                    return found
                continue
            for _ in range(_ASK_SLICES):
                poll_and_sleep(self._poll_interrupts)
        return known

    def count_new_files(self) -> None:
        """Count the new files again, unless they were listed a short time ago.

        The leader's committer calls it after each anchor. A listing that fails is logged and repeated later.
        """
        if not self._counts or self._files is None or self.frozen is None or monotonic() < self._list_at_s:
            return
        self._count(self._files, self.frozen)

    def _count(self, files: Uris, frozen: DataManifest) -> None:
        """Count the new files. A listing that fails keeps nobody from training the files that are frozen."""
        self._list_at_s = monotonic() + _LIST_EVERY_S
        try:
            found = files.find(self._uri)
        except (StoreError, DataError) as error:
            _LOG.warning("new files are not counted: %s", error)
            return
        self.new_files = len(set(found).difference(frozen.uris))
        self._tell(self.new_files)
        self._list_at_s = monotonic() + max(_LIST_EVERY_S, listing_pause_s(len(found)))
