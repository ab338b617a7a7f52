"""`python -m cpr_trainer cleanup`: deletes all saves of a job that is being deleted (`snapshots.deleteWithJob`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from cpr_contract.reports import Deleted
from cpr_trainer.checkpoint.anchor.pruning import delete_saves, everything
from cpr_trainer.runtime import read_job, store_access
from cpr_trainer.store import Store, open_store

_LOG = logging.getLogger(__name__)


def run(environ: Mapping[str, str], spared: Iterable[str]) -> Deleted:
    """Clean up after the job that the environment names; see `clean_up`."""
    job = read_job(environ)
    return clean_up(open_store(job.snapshots.store, *store_access(environ)), job.job_uid, spared)


def clean_up(store: Store, job_uid: str, spared: Iterable[str]) -> Deleted:
    """Delete all objects of a job but what the anchors `spared` (keys) need, and say how much that was.

    Raises StoreError.
    """
    doomed, unreadable = everything(store, job_uid, spared)
    delete_saves(store, doomed)
    deleted = Deleted(len(doomed), sum(entry.size_bytes for entry in doomed), unreadable)
    _LOG.info("%s", deleted)
    return deleted
