"""The data that a job trains, as its first leader found it: written once, read by all."""

from __future__ import annotations

from cpr_contract.manifests import DataManifest, data_key
from cpr_trainer.checkpoint.format.documents import read_document, write_once
from cpr_trainer.store import ExistsError, MissingError, Store


def read_data(store: Store, job_uid: str, *, evaluates: bool = False) -> DataManifest | None:
    """Return what a job's data was found to be, None if nobody has looked yet. Raises StoreError, DamagedError.

    evaluates: see `DataManifest`.
    """
    try:
        return read_document(store, DataManifest, data_key(job_uid, evaluates=evaluates))[0]
    except MissingError:
        return None


def pin_data(store: Store, found: DataManifest) -> DataManifest:
    """Pin what was found, and return what counts: another leader may have been faster. Raises as `read_data` does."""
    key = data_key(found.job_uid, evaluates=found.evaluates)
    try:
        write_once(store, key, found)
    except ExistsError:
        return read_document(store, DataManifest, key)[0]
    return found


def keep_data(store: Store, pinned: DataManifest | None) -> None:
    """Write the document again if it was lost, with its bucket perhaps; None is of data without files.

    Raises StoreError.
    """
    if pinned is None:
        return
    key = data_key(pinned.job_uid, evaluates=pinned.evaluates)
    try:
        store.get_into(key, ())
    except MissingError:
        write_once(store, key, pinned)
