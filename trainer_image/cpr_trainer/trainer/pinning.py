"""What data the job trains: found by its first leader, and the same for every trainer as long as the job lives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

from cpr_contract.manifests import DataManifest
from cpr_trainer.checkpoint.anchor.pruning import listing_pause_s
from cpr_trainer.checkpoint.format.records import keep_vocabularies, pin_data, read_data, read_vocabularies
from cpr_trainer.data.blocks import Index
from cpr_trainer.data.pinned import to_indices, to_manifest
from cpr_trainer.data.source import Find, FindVocabularies
from cpr_trainer.data.vocabularies import Vocabularies
from cpr_trainer.errors import DataError
from cpr_trainer.store import Store, StoreError, Uris
from cpr_trainer.trainer.interrupts import Attend
from cpr_trainer.trainer.patience import attend_for_a_slice

_LOG = logging.getLogger(__name__)

#: A follower asks the store so often whether the leader has pinned the data.
_ASK_SLICES = 20
#: New files are looked for no more often; a listing of many files is put off longer.
_LIST_EVERY_S = 600.0


class Pinning:
    """One trainer's view of its job's data. `leads` tells whether it is the leader by the newest roster.

    `pinned` is what all train, None for data without files. `new_files` counts those that `uri` names and which came
    later, as the leader finds them when it starts and by `count_new_files`; `tell` is told of them. With `evaluates` it
    is the data that the job is scored on, and nobody counts. `known` are the vocabularies of tables.
    """

    def __init__(  # noqa: PLR0913 -- whose data, of what kind, and with whom
        self,
        job_uid: str,
        uri: str | None,
        leads: Callable[[], bool],
        attend: Attend,
        tell: Callable[[int], None] = lambda _: None,
        *,
        evaluates: bool = False,
    ) -> None:
        self.pinned: DataManifest | None = None
        self.known: Vocabularies = {}
        self.new_files = 0
        self._job_uid = job_uid
        self._uri = uri or ""
        self._leads = leads
        self._attend = attend
        self._tell = tell
        self._evaluates = evaluates
        self._counts = bool(uri) and not evaluates
        self._files: Uris | None = None
        self._list_at_s = 0.0

    def indices(self, store: Store, files: Uris, find: Find) -> Sequence[Index]:
        """Return the files of the data and their blocks; the first leader finds and pins them, all others wait for it.

        Raises DataError, DamagedError, StoreError, and what `attend` raises.
        """
        while (pinned := read_data(store, self._job_uid, evaluates=self._evaluates)) is None:
            if self._leads():
                found = to_manifest(self._job_uid, self._uri, find(), evaluates=self._evaluates)
                pinned = pin_data(store, found)
                break
            for _ in range(_ASK_SLICES):
                attend_for_a_slice(self._attend)
        else:
            if self._counts and self._leads():
                self._count(files, pinned)
        if self._evaluates:
            _LOG.info("is scored on %d files", len(pinned.uris))
        else:
            _LOG.info("trains %d files, and leaves %d out that came later", len(pinned.uris), self.new_files)
        self.pinned, self._files = pinned, files
        return to_indices(pinned)

    def vocabularies(self, store: Store, find: FindVocabularies) -> Vocabularies:
        """Return the vocabularies of tables; the first leader finds and keeps them, all others wait for it.

        Raises as `indices` does.
        """
        while (kept := read_vocabularies(store, self._job_uid)) is None:
            if self._leads():
                keep_vocabularies(store, self._job_uid, find(self._attend))
                continue
            for _ in range(_ASK_SLICES):
                attend_for_a_slice(self._attend)
        for table, each in kept.items():
            _LOG.info("table %s has a vocabulary of %d values", table, len(each))
        self.known = kept
        return kept

    def count_new_files(self) -> None:
        """Count the new files again, unless they were listed a short time ago.

        The leader's committer calls it after each anchor. A listing that fails is logged and repeated later.
        """
        if not self._counts or self._files is None or self.pinned is None or monotonic() < self._list_at_s:
            return
        self._list_at_s = monotonic() + _LIST_EVERY_S
        try:
            self._count(self._files, self.pinned)
        except (StoreError, DataError) as error:
            _LOG.warning("new files are not counted: %s", error)

    def _count(self, files: Uris, pinned: DataManifest) -> None:
        found = files.find(self._uri)
        self.new_files = len(set(found).difference(pinned.uris))
        self._tell(self.new_files)
        self._list_at_s = monotonic() + max(_LIST_EVERY_S, listing_pause_s(len(found)))
