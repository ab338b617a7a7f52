"""How far training may continue without the shards that are being replaced (`onShardLoss: Degrade`)."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_operator.recovery.account import Account


@dataclass(frozen=True, slots=True)
class Extent:
    """Training may continue up to sample `until`. 0 means that it waits."""

    until: int
    reason: str


def extent(account: Account, shards: int, bound: int) -> Extent:
    """How far training, which has reached at most sample `bound`, may continue without `shards` shards.

    `account` has already reserved their worst loss. Half of the remaining budget is for this recovery, divided
    among the shards, so that another recovery meanwhile has the other half. Rounded down to whole samples.
    """
    left = account.ledger.left - account.set_aside
    more = max(left, 0) // 2 // shards if shards else 0
    until = min(bound + more, account.ledger.total)
    if until <= bound:
        return Extent(0, f"training waits for them, because only {max(left, 0)} sample-shards are left")
    return Extent(until, f"training may continue without them for {until - bound} samples, up to sample {until}")
