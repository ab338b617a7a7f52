"""Deletes saves that no restore can need any more."""

from __future__ import annotations

from collections.abc import Iterable

from cpr_contract.manifests import MANIFEST
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot.names import parse_save
from cpr_trainer.store import Store


def prune(store: Store, job_uid: str, keep: tuple[AnchorRef, ...]) -> int:
    """Delete this job's saves of steps before the oldest anchor in `keep`; return how many objects went.

    Manifests go before parts, so that nothing half deleted looks like a save. Saves never committed go too. With
    nothing to keep, nothing is deleted. Raises StoreError.
    """
    if not keep:
        return 0
    doomed = stale(store.list(f"{job_uid}/"), min(anchor.step for anchor in keep))
    manifests = tuple(key for key in doomed if key.endswith("/" + MANIFEST))
    store.delete(manifests)
    store.delete(key for key in doomed if not key.endswith("/" + MANIFEST))
    return len(doomed)


def stale(keys: Iterable[str], oldest_step: int) -> tuple[str, ...]:
    """Return those keys that belong to saves of steps before `oldest_step`; origins are of no save, and stay.

    The newest save of a shard is never among them: the anchor of `oldest_step` holds a save of every shard.
    """
    return tuple(key for key in keys if (save := parse_save(key)) is not None and save.step < oldest_step)
