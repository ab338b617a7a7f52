"""Claims: which incarnations have begun to choose a save, so that what comes too late for them is told to nobody.

The successor claims, then lists. The predecessor commits, then looks for claims. Whichever comes first, either the
successor finds the save, or the predecessor the claim.
"""

from __future__ import annotations

from cpr_contract.manifests import ShardManifest
from cpr_contract.roster import ShardRoster
from cpr_trainer.checkpoint.format.errors import OvertakenError
from cpr_trainer.checkpoint.format.names import claims_prefix
from cpr_trainer.store import Store


def claim(store: Store, roster: ShardRoster, job_uid: str) -> None:
    """Record that an incarnation is about to list saves: what is committed after that it may not find.

    Raises StoreError.
    """
    prefix = claims_prefix(job_uid, roster.counters.generation, roster.index)
    store.put(f"{prefix}{roster.incarnation:04d}", b"{}")


def check_claims(store: Store, saved: ShardManifest) -> None:
    """Raise OvertakenError if a later incarnation may not have found this save, which is committed. Raises StoreError.

    Whoever claims after this listing lists after it, too, and finds the save.
    """
    prefix = claims_prefix(saved.job_uid, saved.generation, saved.index)
    newest = max((int(entry.key.removeprefix(prefix)) for entry in store.list(prefix)), default=0)
    if newest > saved.incarnation:
        what = f"The save of step {saved.step} came after incarnation {newest} had begun to restore"
        raise OvertakenError(f"{what}.", "Nothing is to be done: that incarnation goes on from an earlier save.")
