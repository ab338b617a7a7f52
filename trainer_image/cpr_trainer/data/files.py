"""Where the files of a job's data are read."""

from __future__ import annotations

from cpr_contract.spec import JobSpec
from cpr_trainer.runtime import Access
from cpr_trainer.store import Uris

_NONE = Access()


def files_of(job: JobSpec, store_access: Access = _NONE, data_access: Access = _NONE) -> Uris:
    """Return what finds and opens the files of a job's data: in the data's own store, else in that of the job.

    Only the access to the store that is read is used, so that neither store is shown credentials of the other.
    """
    if job.data.store is None:
        return Uris(job.snapshots.store, *store_access)
    return Uris(job.data.store, *data_access, field="data.store")
