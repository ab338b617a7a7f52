"""From one life of a shard's server to the next: what the last one left, and how the next goes on with it.

To trainers it is a broken connection: they push again what was not acknowledged. A save under way is lost.
"""

from __future__ import annotations

from time import monotonic

from cpr_contract.manifests import RowUpdates
from cpr_trainer.checkpoint.restore.restorer import Restored
from cpr_trainer.checkpoint.write.checkpointer import ShardCheckpointer
from cpr_trainer.exchange.frames import Header
from cpr_trainer.shard.progress import Progress
from cpr_trainer.shard.resume import Account, Kept
from cpr_trainer.shard.service import Service


def kept_of(service: Service, saving: ShardCheckpointer, progress: Progress, restored: Restored) -> Kept:
    """Return all that the next life needs."""
    links, top, origin = saving.stands_on
    kind, step = saving.under_way
    account = Account(
        generation=progress.generation,
        restored=restored,
        losses=progress.losses,
        lost_row_updates=progress.row_updates.lost,
        exact=progress.row_updates.exact,
        total_samples=progress.total_samples,
        cuts=progress.cuts,
        dirty=progress.dirty,
        catch_up=progress.catch_up,
        in_order=progress.in_order,
        epoch=service.arena.epochs.now,
        newest_save=service.newest_save,
        saved_steps=service.saved_steps,
        given_up_step=service.given_up_step,
        links=links,
        top=top,
        origin=origin,
        saving=kind,
        saving_step=step,
    )
    number = service.arena.redo.number
    return Kept(account, number, progress.order, progress.replayed, progress.applied, progress.row_updates.pushed)


def go_on(kept: Kept, service: Service, saving: ShardCheckpointer) -> None:
    """Serve the rows that the last life left, once the last push is whole."""
    account, arena = kept.account, service.arena
    arena.epochs.now = account.epoch
    arena.epochs.release_all()
    push: Header | None = None
    if arena.redo.number != kept.push:
        arena.put_again()
        push = Header.unpack(arena.redo.note)
    service.newest_save, service.saved_steps = account.newest_save, account.saved_steps
    service.given_up_step = account.given_up_step
    saving.start(account.links, account.top, monotonic(), account.origin, counted=False)
    progress = Progress(
        account.generation,
        kept.applied,
        account.losses,
        RowUpdates(kept.pushed, account.lost_row_updates, account.exact),
        total_samples=account.total_samples,
        cuts=account.cuts,
        dirty=account.dirty,
        catch_up=account.catch_up,
        replayed=kept.replayed,
        order=kept.order,
        in_order=account.in_order,
    )
    service.go_on(progress, push)
    _save_again(account, service, saving, progress)


def _save_again(account: Account, service: Service, saving: ShardCheckpointer, progress: Progress) -> None:
    """Take the cut again that the last life was saving, or give it up if the rows have moved on since."""
    if account.saving not in {"Anchor", "Flush"} or saving.unsaved:
        return
    if account.saving == "Anchor":
        mark = service.mark(progress)
        if not progress.dirty and mark.step == account.saving_step:
            saving.save("Anchor", mark)
            return
        service.given_up_step = account.saving_step
    progress.dirty = True
