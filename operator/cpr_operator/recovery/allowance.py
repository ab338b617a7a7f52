"""How far training may go on without the shards that are being replaced (`onShardLoss: Degrade`)."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_operator.recovery.account import Account


@dataclass(frozen=True, slots=True)
class Extent:
    """Training may go on up to sample `until`; 0: it waits."""

    until: int
    reason: str


def extent(account: Account, shards: int, bound: int) -> Extent:
    """How far training, which stands before sample `bound`, may go on without so many shards.

    `account` has their worst loss set aside already. Of what it has left half is for this recovery, shared by the
    shards: another one meanwhile finds the other half. In whole samples, rounded down.
    """
    left = account.ledger.left - account.set_aside
    more = max(left, 0) // 2 // shards if shards else 0
    until = min(bound + more, account.ledger.total)
    if until <= bound:
        return Extent(0, f"training waits for them, because only {max(left, 0)} sample-shards are left")
    return Extent(until, f"training may continue without them for {until - bound} samples, up to sample {until}")
