"""`python -m cpr_trainer cleanup`: deletes all saves of a job that is being deleted (`snapshots.deleteWithJob`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from cpr_contract.reports import Deleted
from cpr_trainer.checkpoint.anchor.pruning import delete_saves, everything
from cpr_trainer.runtime import read_job, store_access
from cpr_trainer.store import Store, open_store

_LOG = logging.getLogger(__name__)


def run(environ: Mapping[str, str], retained: Iterable[str]) -> Deleted:
    """Clean up after the job that the environment names; see `clean_up`."""
    job = read_job(environ)
    return clean_up(open_store(job.snapshots.store, *store_access(environ)), job.job_uid, retained)


def clean_up(store: Store, job_uid: str, retained: Iterable[str]) -> Deleted:
    """Delete all objects of a job except those that the anchors `retained` (keys) need; return the amount.

    Raises StoreError.
    """
    to_delete, unreadable = everything(store, job_uid, retained)
    delete_saves(store, to_delete)
    deleted = Deleted(len(to_delete), sum(entry.size_bytes for entry in to_delete), unreadable)
    _LOG.info("%s", deleted)
    return deleted
