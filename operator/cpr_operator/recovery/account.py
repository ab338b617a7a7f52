"""The ledger during recoveries: the losses, and the reservations until the members report theirs.

Reservations are ranges, too, so a sample counts once per shard, however often it is lost or reserved. A shard that
dies again before its next save is therefore charged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cpr_operator import ledger as ledgers
from cpr_operator.ledger import Ledger, Ranges


@dataclass(frozen=True, slots=True)
class Account:
    """`reserved` has the reservations by shard. `dense` is reserved on every shard.

    `owes_from` names the shards that have not reported what they lost, with the first sample that they may miss;
    `dense_owes_from` is the same of the dense state. They may miss more than was reserved: a report that the
    reservation was made from may have been old.
    """

    ledger: Ledger
    reserved: tuple[Ranges, ...]
    dense: Ranges = ()
    owes_from: Mapping[int, int] = field(default_factory=dict)
    dense_owes_from: int | None = None

    @property
    def charged(self) -> int:
        """Spent and reserved sample-shards: the worst case of the recoveries under way."""
        return self.ledger.carried + sum(ledgers.length(ranges) for ranges in self._worst())

    @property
    def set_aside(self) -> int:
        """The reserved sample-shards that are not lost yet."""
        return self.charged - self.ledger.spent

    def reserve(self, shards: Mapping[int, Ranges], dense: Ranges = ()) -> Account:
        """Reserve more ranges, by shard and on all shards."""
        return replace(
            self,
            reserved=tuple(ledgers.union(ranges, shards.get(i, ())) for i, ranges in enumerate(self.reserved)),
            dense=ledgers.union(self.dense, dense),
        )

    def note_pending_dense(self, first: int | None) -> Account:
        """Note that the dense state may miss samples from `first` on, None: no more than was noted before."""
        known = [since for since in (self.dense_owes_from, first) if since is not None]
        return replace(self, dense_owes_from=min(known, default=None))

    def settle(self, lost: Mapping[int, Ranges]) -> Account:
        """Charge the reported losses of these shards, and release their reservations."""
        reserved = tuple(() if i in lost else ranges for i, ranges in enumerate(self.reserved))
        owes_from = {i: first for i, first in self.owes_from.items() if i not in lost}
        return replace(self, ledger=ledgers.add_by_shard(self.ledger, lost), reserved=reserved, owes_from=owes_from)

    def settle_dense(self, lost: Ranges) -> Account:
        """Charge every shard with the losses of the dense state that the leader reported.

        The dense reservation is released.
        """
        return replace(self, ledger=ledgers.add_everywhere(self.ledger, lost), dense=(), dense_owes_from=None)

    def recovered(self, sample_shards: int) -> Account:
        """Add the losses of a finished recovery to the running sum."""
        return replace(self, ledger=ledgers.recovered(self.ledger, max(sample_shards, 0)))

    def charge_reserved(self) -> Account:
        """Charge all open reservations in full."""
        return Account(replace(self.ledger, lost=ledgers.bounded(self._worst())), ((),) * len(self.reserved))

    def charge_pending(self, samples: int) -> Account:
        """Charge the worst that a model of `samples` samples can miss: no member will report its losses any more."""
        owed = {index: ((first, samples),) for index, first in self.owes_from.items()}
        dense = () if self.dense_owes_from is None else ((self.dense_owes_from, samples),)
        return self.reserve(owed, dense).charge_reserved()

    def roll_back(self, samples: int) -> Account:
        """Go back to an anchor at `samples`. All later samples are trained again.

        What members have not reported counts as lost up to the anchor, because the anchor contains the recovery that
        lost it, and what a shard reports after a rollback begins at the anchor.
        """
        charged = self.charge_pending(samples)
        return replace(charged, ledger=ledgers.rolled_back(charged.ledger, samples))

    def reshard(self, shards: int, limit: int) -> Account:
        """The account after a change of the number of shards. Open reservations count as lost."""
        return Account(ledgers.resharded(self.charge_reserved().ledger, shards, limit), ((),) * shards)

    def _worst(self) -> tuple[Ranges, ...]:
        return tuple(
            ledgers.union(lost, reserved, self.dense)
            for lost, reserved in zip(self.ledger.lost, self.reserved, strict=True)
        )
