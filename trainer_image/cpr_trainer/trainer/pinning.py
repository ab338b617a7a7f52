"""What data the job trains: found by its first leader, and the same for every trainer as long as the job lives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cpr_contract.manifests import DataManifest
from cpr_trainer.checkpoint.format.pinned import pin_data, read_data
from cpr_trainer.data.blocks import Index
from cpr_trainer.data.pinned import to_indices, to_manifest
from cpr_trainer.data.source import Find
from cpr_trainer.store import Store, Uris
from cpr_trainer.trainer.interrupts import Attend
from cpr_trainer.trainer.patience import attend_for_a_slice

_LOG = logging.getLogger(__name__)

#: A follower asks the store so often whether the leader has pinned the data.
_ASK_SLICES = 20


class Pinning:
    """One trainer's view of its job's data. `leads` tells whether it is the leader by the newest roster.

    `pinned` is what all train, None for data without files. `new_files` counts those that `uri` names and which came
    later, as the leader finds them when it starts.
    """

    def __init__(self, job_uid: str, uri: str | None, leads: Callable[[], bool], attend: Attend) -> None:
        self.pinned: DataManifest | None = None
        self.new_files = 0
        self._job_uid = job_uid
        self._uri = uri or ""
        self._leads = leads
        self._attend = attend

    def indices(self, store: Store, files: Uris, find: Find) -> Sequence[Index]:
        """Return the files of the data and their blocks; the first leader finds and pins them, all others wait for it.

        Raises DataError, DamagedError, StoreError, and what `attend` raises.
        """
        while (pinned := read_data(store, self._job_uid)) is None:
            if self._leads():
                pinned = pin_data(store, to_manifest(self._job_uid, self._uri, find()))
                break
            for _ in range(_ASK_SLICES):
                attend_for_a_slice(self._attend)
        else:
            if self._leads():
                self.new_files = len(set(files.find(self._uri)).difference(pinned.uris))
        _LOG.info("trains %d files, and leaves %d out that came later", len(pinned.uris), self.new_files)
        self.pinned = pinned
        return to_indices(pinned)
