"""The record of what an incarnation restored: which of a shard's saves are on its lineage follows from these."""

from __future__ import annotations

from cpr_contract.manifests import Origin
from cpr_trainer.checkpoint.format.documents import read_document, write_once
from cpr_trainer.checkpoint.format.errors import DamagedError
from cpr_trainer.checkpoint.format.names import origin_key
from cpr_trainer.store import Store


def write_origin(store: Store, origin: Origin) -> None:
    """Record what an incarnation restored; done before it serves. Writing the same again is success.

    Raises StoreError; ExistsError if another process recorded another choice under this incarnation.
    """
    write_once(store, origin_key(origin.job_uid, origin.generation, origin.index, origin.incarnation), origin)


def read_origin(store: Store, key: str) -> Origin | None:
    """Return a record; None if it cannot be read, or lies under another's key. Raises StoreError."""
    try:
        origin, _ = read_document(store, Origin, key)
    except DamagedError:
        return None
    place = origin_key(origin.job_uid, origin.generation, origin.index, origin.incarnation)
    return origin if place == key else None
