"""`python -m cpr_trainer inventory`: lists, verifies or prunes the saves in a store, for `cprjob snapshots`.

`python -m cpr_trainer cleanup` deletes all saves of a job that is being deleted (`snapshots.deleteWithJob`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import TextIO, assert_never

from cpr_contract.codec import to_json
from cpr_contract.history import history_prefix
from cpr_contract.reports import Deleted
from cpr_contract.requests import Listing, Pruning, Request, Verification
from cpr_trainer.checkpoint.anchor.pruning import Pruner, delete_saves, everything, on_lineage
from cpr_trainer.checkpoint.restore_points import Inventory, points_of, read_inventory, verify
from cpr_trainer.errors import AmbiguousError
from cpr_trainer.history.records import run_recorder
from cpr_trainer.runtime import read_job, read_request, store_access
from cpr_trainer.store import Entry, Store, open_store

_LOG = logging.getLogger(__name__)


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Answer the `Request` in `source` by one line to `sink`. Raises TrainerError."""
    request = read_request(Request, source, "snapshots")
    store = open_store(request.store, *store_access(environ))
    print(to_json(answer(request, store, time.time())), file=sink, flush=True)


def clean_up(environ: Mapping[str, str], retained: Iterable[str], *, keep_history: bool = False) -> Deleted:
    """Delete a job's objects except those that the anchors `retained` (keys) need. Raises StoreError.

    With `keep_history` its history stays, too, with the last record, which this pod has.
    """
    job = read_job(environ)
    if keep_history:
        run_recorder(environ)
    store = open_store(job.snapshots.store, *store_access(environ))
    to_delete, unreadable = everything(store, job.job_uid, retained)
    if keep_history:
        to_delete = tuple(entry for entry in to_delete if not entry.key.startswith(history_prefix(job.job_uid)))
    delete_saves(store, [entry.key for entry in to_delete])
    deleted = Deleted(len(to_delete), sum(entry.size_bytes for entry in to_delete), unreadable)
    _LOG.info("%s", deleted)
    return deleted


def answer(request: Request, store: Store, now_s: float) -> Listing | Verification | Pruning:
    """Run the request at this time (seconds since the epoch).

    Raises StoreError; to prune DamagedError and AmbiguousError too.
    """
    inventory = read_inventory(store, request.job_uid)
    match request.action:
        case "List":
            return Listing(points_of(inventory), inventory.damaged)
        case "Verify":
            return verify(store, inventory, request.job_uid, request.model)
        case "Prune":
            return _prune(store, inventory, request, now_s)
        case _:
            assert_never(request.action)


def _prune(store: Store, inventory: Inventory, request: Request, now_s: float) -> Pruning:
    """Prune as a leader does after every anchor, or delete all saves; return them also without deleting."""
    if len(inventory.jobs) > 1:
        raise AmbiguousError(f"There are saves of several jobs: {', '.join(inventory.jobs)}.", "Name one with --job.")
    doomed = _doomed(store, inventory, request, now_s, *inventory.jobs) if inventory.jobs else ()
    deleted, points = {entry.key for entry in doomed}, points_of(inventory)
    if request.delete:
        delete_saves(store, [entry.key for entry in doomed])
    return Pruning(
        stay=tuple(point for point in points if point.key not in deleted),
        go=tuple(point for point in points if point.key in deleted),
        objects=len(doomed),
        size_bytes=sum(entry.size_bytes for entry in doomed),
        deleted=request.delete,
    )


def _doomed(store: Store, inventory: Inventory, request: Request, now_s: float, job_uid: str) -> tuple[Entry, ...]:
    if not request.keep:
        return everything(store, job_uid)[0]
    anchors = {(point.generation, point.step) for point in points_of(inventory) if point.kind == "Anchor"}
    forks = {generation: step for (_, generation), step in inventory.forks.items()} | dict(request.forks)
    try:
        retained = on_lineage(anchors, forks)[-request.keep :]
    except KeyError as error:
        raise AmbiguousError(
            f"The store does not contain the anchor at which generation {error} of job {job_uid} began.",
            "Name the job by the file that kubectl get cprjob -o yaml writes: its status contains that anchor.",
        ) from error
    if not retained:
        return ()
    manifests = (held.manifest for held in inventory.dense.values() if held.manifest.shards)
    best = {each.best_step for each in manifests if (each.generation, each.step) in retained}
    oldest = retained[0][1] if request.recorded is None else min(retained[0][1], request.recorded)
    return Pruner(store, job_uid).superfluous(oldest, now_s, best)
