"""Inputs that are fixed once for the whole job: its data, vocabularies of its tables, numbers of workers and threads.

The first leader determines them and writes them into the store; every trainer reads them from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import WorkersManifest, workers_key
from cpr_contract.pinned_data import DataManifest, data_key
from cpr_trainer.checkpoint.anchor.pruning import listing_pause_s
from cpr_trainer.checkpoint.format.records import (
    freeze,
    read_frozen,
    read_vocabularies,
    write_vocabularies,
)
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import Find, FindVocabularies, indices_of_manifest, manifest_of_indices
from cpr_trainer.data.vocabularies import Vocabularies
from cpr_trainer.errors import DataError
from cpr_trainer.store import Store, StoreError
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.followed_data import DataLooks, FollowedData
from cpr_trainer.trainer.store_retry import poll_and_sleep
from cpr_trainer.trainer.worker_tuning import WorkerChoice

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
#: Returns the URIs of the present files of the data. Raises DataError and StoreError.
ListFiles = Callable[[], Sequence[str]]

#: Polls between two requests of a follower for an input that is not there yet.
_RETRY_POLLS = 20
#: Least time between two searches for new files; after a long listing it is longer.
_LIST_EVERY_S = 600.0


class FrozenInputs:
    """One trainer's access to the frozen inputs. `leads` returns whether it leads by the newest roster.

    `data` has the files that are trained, None for data without files. `new_files` counts later files below `uri`; the
    leader counts them at its start and by `count_new_files`, and calls `on_new_files`. With `evaluates` these are the
    inputs of the evaluation, and new files are not counted. `vocabularies` are those of the tables. `workers` is the
    number of workers and threads, None for those of the evaluation.
    """

    def __init__(  # noqa: PLR0913 -- the inputs, and the trainer
        self,
        job_uid: str,
        uri: str | None,
        leads: Callable[[], bool],
        poll_interrupts: PollInterrupts,
        on_new_files: Callable[[int], None] = lambda _: None,
        *,
        evaluates: bool = False,
    ) -> None:
        self.data: DataManifest | None = None
        self.vocabularies: Vocabularies = {}
        self.workers: WorkersManifest | None = None
        self.new_files = 0
        self._job_uid = job_uid
        self._uri = uri or ""
        self._leads = leads
        self._poll_interrupts = poll_interrupts
        self._on_new_files = on_new_files
        self._evaluates = evaluates
        self._counts = bool(uri) and not evaluates
        self._list_files: ListFiles | None = None
        self._list_at_s = 0.0

    def freeze_data(self, store: Store, list_files: ListFiles, find: Find) -> Sequence[Index]:
        """Return the frozen files and their blocks; the first leader freezes the result of `find`.

        Raises DataError, DamagedError, StoreError, and what `poll_interrupts` raises.
        """

        def read() -> DataManifest | None:
            return read_frozen(store, DataManifest, data_key(self._job_uid, evaluates=self._evaluates))

        def find_and_freeze() -> DataManifest:
            return freeze(store, manifest_of_indices(self._job_uid, self._uri, find(), evaluates=self._evaluates))

        if (data := read()) is None:
            data = self._read_or_freeze(read, find_and_freeze)
        elif self._counts and self._leads():
            self._count(list_files, data)
        if self._evaluates:
            _LOG.info("evaluates on %d files", len(data.uris))
        else:
            _LOG.info("trains %d files, and omits %d later ones", len(data.uris), self.new_files)
        self.data, self._list_files = data, list_files
        return indices_of_manifest(data)

    def await_first_pin(self, followed: FollowedData, looks: DataLooks) -> Sequence[Index]:
        """Return the files of all pins of data that arrives, once there is one; the leader looks for the first files.

        Raises as `freeze_data` does.
        """
        while not (found := followed.read()):
            if self._leads() and (looks.look(waits=True, now_s=time()) is not None or looks.is_behind):
                self._poll_interrupts()
                continue
            end = monotonic() + looks.every_s
            while monotonic() < end:
                poll_and_sleep(self._poll_interrupts)
        _LOG.info("follows its data from pin %d on", followed.number)
        return found

    def freeze_vocabularies(self, store: Store, find: FindVocabularies) -> Vocabularies:
        """Return the tables' vocabularies; the first leader freezes the result of `find`. Raises as `freeze_data`."""

        def find_and_freeze() -> Vocabularies | None:
            write_vocabularies(store, self._job_uid, find(self._poll_interrupts))
            return read_vocabularies(store, self._job_uid)

        self.vocabularies = self._read_or_freeze(lambda: read_vocabularies(store, self._job_uid), find_and_freeze)
        for table, vocabulary in self.vocabularies.items():
            _LOG.info("table %s has a vocabulary of %d values", table, len(vocabulary))
        return self.vocabularies

    def freeze_workers(self, store: Store, choose: Callable[[PollInterrupts], WorkerChoice]) -> WorkerChoice:
        """Return the number of workers and threads; the first leader freezes the result of `choose`.

        A step that another process computes again, on another node, therefore has the same numbers. Raises as
        `freeze_data` does.
        """

        def choose_and_freeze() -> WorkersManifest:
            found = choose(self._poll_interrupts)
            _LOG.info("%d workers, %s, and %d threads", found.count, found.reason, found.threads)
            manifest = WorkersManifest(CONTRACT_VERSION, self._job_uid, found.count, found.reason, found.threads)
            return freeze(store, manifest)

        self.workers = self._read_or_freeze(
            lambda: read_frozen(store, WorkersManifest, workers_key(self._job_uid)), choose_and_freeze
        )
        return WorkerChoice(self.workers.workers, self.workers.reason, self.workers.threads)

    def count_new_files(self) -> None:
        """Count the new files again, unless they were listed a short time ago.

        The leader's committer calls it after each anchor. A listing that fails is logged and repeated later.
        """
        if not self._counts or self._list_files is None or self.data is None or monotonic() < self._list_at_s:
            return
        self._count(self._list_files, self.data)

    def _read_or_freeze(self, read: Callable[[], T | None], find_and_freeze: Callable[[], T | None]) -> T:
        """Return the result of `read` once there is one. The leader calls `find_and_freeze`, all others wait."""
        while (frozen := read()) is None:
            if self._leads():
                if (found := find_and_freeze()) is not None:
                    return found
                continue
            for _ in range(_RETRY_POLLS):
                poll_and_sleep(self._poll_interrupts)
        return frozen

    def _count(self, list_files: ListFiles, data: DataManifest) -> None:
        """Count the new files. A listing that fails does not keep the frozen files from being trained."""
        self._list_at_s = monotonic() + _LIST_EVERY_S
        try:
            found = list_files()
        except (StoreError, DataError) as error:
            _LOG.warning("new files are not counted: %s", error)
            return
        self.new_files = len(set(found).difference(data.uris))
        self._on_new_files(self.new_files)
        self._list_at_s = monotonic() + max(_LIST_EVERY_S, listing_pause_s(len(found)))
