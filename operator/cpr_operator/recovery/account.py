"""The budget's account during recoveries: losses, and reservations until members report theirs.

Reservations are ranges, too, so a sample counts once per shard, however often it is lost or reserved. A shard that
dies again before its next save is therefore charged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cpr_operator import ledger as ledgers
from cpr_operator.api.status import Budget, Shard, Status
from cpr_operator.ledger import Ledger, Ranges, shown


@dataclass(frozen=True, slots=True)
class Account:
    """The ledger and its reservations.

    reserved: the reservations by shard. `dense` is reserved on every shard.
    pending_from: by shard, the first sample that it may have lost and has not reported. `dense_pending_from` is the
        same of the dense state. More than the reservation may be pending, if that was made from an old report.
    """

    ledger: Ledger
    reserved: tuple[Ranges, ...]
    dense: Ranges = ()
    pending_from: Mapping[int, int] = field(default_factory=dict)
    dense_pending_from: int | None = None

    @property
    def charged(self) -> int:
        """Spent and reserved sample-shards: the worst case of the recoveries under way."""
        return self.ledger.carried + sum(ledgers.length(ranges) for ranges in self._worst())

    @property
    def set_aside(self) -> int:
        """The reserved sample-shards that are not lost yet."""
        return self.charged - self.ledger.spent

    @property
    def is_overspent(self) -> bool:
        """True if more is lost than the budget allows, in all or in any window."""
        ledger = self.ledger
        windowed = ledgers.most_in_window(ledger.lost, ledger.window) if ledger.window else 0
        return ledger.left < 0 or windowed > ledger.window_limit

    def most_in_window(self, window: int) -> int:
        """Return the most spent and reserved sample-shards that any `window` sample numbers have; 0 without one."""
        return ledgers.most_in_window(self._worst(), window) if window else 0

    def left(self, bound: int) -> int:
        """Return the sample-shards that a loss of up to a window of samples before or after `bound` may have.

        It is neither spent nor reserved, and at least 0.
        """
        ledger, left = self.ledger, self.ledger.left - self.set_aside
        if ledger.window:
            near = [ledgers.clip(ranges, ledger.end, start=bound - 2 * ledger.window) for ranges in self._worst()]
            left = min(left, ledger.window_limit - ledgers.most_in_window(near, ledger.window))
        return max(left, 0)

    def fold(self, anchors: int) -> Account:
        """Count losses that no rollback and no window needs any more. The oldest anchor has `anchors` samples."""
        first = [ranges[0][0] for ranges in (*self.reserved, self.dense) if ranges]
        pending = [*self.pending_from.values(), *([] if self.dense_pending_from is None else [self.dense_pending_from])]
        return replace(self, ledger=ledgers.fold(self.ledger, min((anchors, *first, *pending)) - self.ledger.window))

    def reserve(self, shards: Mapping[int, Ranges], dense: Ranges = ()) -> Account:
        """Reserve more ranges, by shard and on all shards."""
        return replace(
            self,
            reserved=tuple(ledgers.union(ranges, shards.get(i, ())) for i, ranges in enumerate(self.reserved)),
            dense=ledgers.union(self.dense, dense),
        )

    def note_pending_dense(self, first: int | None) -> Account:
        """Note that the dense state may miss samples from `first` on; None adds nothing to earlier notes."""
        known = [since for since in (self.dense_pending_from, first) if since is not None]
        return replace(self, dense_pending_from=min(known, default=None))

    def settle(self, lost: Mapping[int, Ranges]) -> Account:
        """Charge the reported losses of these shards, and release their reservations."""
        reserved = tuple(() if i in lost else ranges for i, ranges in enumerate(self.reserved))
        pending_from = {i: first for i, first in self.pending_from.items() if i not in lost}
        return replace(self, ledger=ledgers.add(self.ledger, lost), reserved=reserved, pending_from=pending_from)

    def settle_dense(self, lost: Ranges) -> Account:
        """Charge every shard with the reported losses of the dense state, and release its reservation."""
        return replace(self, ledger=ledgers.add_everywhere(self.ledger, lost), dense=(), dense_pending_from=None)

    def recovered(self, sample_shards: int) -> Account:
        """Add the losses of a finished recovery to the running sum."""
        return replace(self, ledger=ledgers.recovered(self.ledger, max(sample_shards, 0)))

    def charge_reserved(self) -> Account:
        """Charge all open reservations in full."""
        return Account(replace(self.ledger, lost=ledgers.bounded(self._worst())), ((),) * len(self.reserved))

    def charge_pending(self, samples: int) -> Account:
        """Charge the most that a model of `samples` samples can miss: no member will report its losses any more."""
        pending = {index: ((first, samples),) for index, first in self.pending_from.items()}
        dense = () if self.dense_pending_from is None else ((self.dense_pending_from, samples),)
        return self.reserve(pending, dense).charge_reserved()

    def roll_back(self, samples: int) -> Account:
        """Go back to an anchor at `samples`. All later samples are trained again.

        Losses that members have not reported are charged up to the anchor. The anchor contains the recovery that lost
        them, and a shard's report after the rollback begins at the anchor.
        """
        charged = self.charge_pending(samples)
        return replace(charged, ledger=ledgers.rolled_back(charged.ledger, samples))

    def reshard(self, shards: int, limit: int) -> Account:
        """Return the account after a change of the number of shards. Open reservations are charged."""
        return Account(ledgers.resharded(self.charge_reserved().ledger, shards, limit), ((),) * shards)

    def _worst(self) -> tuple[Ranges, ...]:
        return tuple(
            ledgers.union(lost, reserved, self.dense)
            for lost, reserved in zip(self.ledger.lost, self.reserved, strict=True)
        )


def account_of(status: Status) -> Account:
    """Return the account that the status holds."""
    stored, dense = status.ledger, status.dense
    # Releases that did not write owesFrom made a reservation whenever the dense state could miss a sample.
    from_reserved = dense.pending_from is None and dense.reserved
    return Account(
        ledger=Ledger(
            total=stored.total_samples,
            # Version 0.1.0 left a limit below the carried losses by less than one sample-shard.
            limit=max(stored.limit_sample_shards, stored.carried_sample_shards),
            lost=stored.ranges or ((),) * len(status.shards),
            running=stored.running_sample_shards,
            carried=stored.carried_sample_shards,
            folded=stored.folded_samples,
            open=status.data is not None,
            window=stored.window_samples,
            window_limit=stored.window_limit_sample_shards,
        ),
        reserved=tuple(shard.reserved for shard in status.shards),
        dense=dense.reserved,
        pending_from={s.index: first for s in status.shards if (first := pending_from(s)) is not None},
        dense_pending_from=dense.floor_samples if from_reserved else dense.pending_from,
    )


def with_account(status: Status, account: Account) -> Status:
    """Return the status with this account, and its portions for people."""
    ledger = account.ledger
    limit, spent = shown(ledger.limit, ledger), shown(ledger.spent, ledger)
    reserved = shown(account.set_aside, ledger)
    shards = tuple(shard.evolve(reserved=ranges) for shard, ranges in zip(status.shards, account.reserved, strict=True))
    budget = Budget(
        limit=limit,
        spent=spent,
        reserved=min(reserved, 1.0),
        remaining=max(round(limit - spent - reserved, 12), 0.0),
        running_sum=shown(ledger.running, ledger),
        rollbacks=status.budget.rollbacks if status.budget else 0,
    )
    stored = status.ledger.evolve(
        total_samples=ledger.total,
        limit_sample_shards=ledger.limit,
        ranges=ledger.lost,
        running_sample_shards=ledger.running,
        carried_sample_shards=ledger.carried,
        folded_samples=ledger.folded,
        window_samples=ledger.window,
        window_limit_sample_shards=ledger.window_limit,
    )
    dense = status.dense.evolve(reserved=account.dense, pending_from=account.dense_pending_from)
    return status.evolve(shards=shards, dense=dense, ledger=stored, budget=budget)


def pending_from(shard: Shard) -> int | None:
    """Return the first sample that the shard may have lost and has not reported; None if all losses are reported.

    For a shard that was lost after its last report, nothing is pending until it has leave to restore.
    """
    if shard.pending_from is not None or shard.lost_at is None or shard.predecessor is not None:
        return shard.pending_from
    return shard.floor_samples


def is_overspent(status: Status) -> bool:
    """Return whether more is lost than the budget allows. Both are 0 while the total is unknown."""
    return account_of(status).is_overspent
