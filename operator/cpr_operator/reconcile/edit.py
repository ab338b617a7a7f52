"""The account in a status: read from it, and written back."""

from __future__ import annotations

from cpr_operator.api.status import Budget, Status
from cpr_operator.ledger import Ledger, Ranges, shown
from cpr_operator.recovery.account import Account


def account_of(status: Status) -> Account:
    """The budget's account as the status holds it."""
    book = status.ledger
    lost = book.ranges or ((),) * len(status.shards)
    return Account(
        ledger=Ledger(
            total=book.total_samples,
            # Version 0.1.0 left a limit below what was carried over by less than one sample-shard.
            limit=max(book.limit_sample_shards, book.carried_sample_shards),
            lost=lost,
            running=book.running_sample_shards,
            carried=book.carried_sample_shards,
        ),
        reserved=tuple(shard.reserved for shard in status.shards),
        dense=status.dense.reserved,
    )


def owed(status: Status, end: int) -> dict[int, Ranges]:
    """The worst that shards can miss which have not told, in a model that stands at `end` samples."""
    untold = [shard for shard in status.shards if shard.lost_at is not None]
    oldest = {s.index: s.floor_samples if s.owes_from is None else s.owes_from for s in untold}
    return {index: ((first, end),) for index, first in oldest.items() if first < end}


def is_overspent(status: Status) -> bool:
    """Whether more is lost than the budget allows. 0 is lost and 0 allowed while the total is not known."""
    return account_of(status).ledger.left < 0


def with_account(status: Status, account: Account) -> Status:
    """The status with this account, its portions for people included."""
    ledger, whole = account.ledger, account.ledger
    limit, spent = shown(ledger.limit, whole), shown(ledger.spent, whole)
    reserved = shown(account.set_aside, whole)
    shards = tuple(shard.evolve(reserved=ranges) for shard, ranges in zip(status.shards, account.reserved, strict=True))
    budget = Budget(
        limit=limit,
        spent=spent,
        reserved=min(reserved, 1.0),
        remaining=max(round(limit - spent - reserved, 12), 0.0),
        running_sum=shown(ledger.running, whole),
        rollbacks=status.budget.rollbacks if status.budget else 0,
    )
    book = status.ledger.evolve(
        total_samples=ledger.total,
        limit_sample_shards=ledger.limit,
        ranges=ledger.lost,
        running_sample_shards=ledger.running,
        carried_sample_shards=ledger.carried,
    )
    dense = status.dense.evolve(reserved=account.dense)
    return status.evolve(shards=shards, dense=dense, ledger=book, budget=budget)


def with_all_owed(status: Status) -> Status:
    """The status of a job without pods that goes back to an anchor: what members have not told yet is set aside.

    Nobody asks them any more. From the save that it was given leave to restore, a member may have missed everything up
    to the anchor, whichever that will be.
    """
    end = status.ledger.total_samples
    dense = ((status.dense.floor_samples, end),) if status.dense.reserved else ()
    return with_account(status, account_of(status).reserve(owed(status, end), dense))
