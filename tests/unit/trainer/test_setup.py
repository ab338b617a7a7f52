"""The store is probed before a job begins, and by its leader alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.roster import Counters
from cpr_trainer.store import StoreUnsuitableError
from cpr_trainer.trainer.setup import is_new_job
from support.memory_store import MemoryStore
from support.shard_job import trainer_roster

SAVE = "uid/gen-0001/dense/group-0001/step-000000100/manifest.json"


class NoListings(MemoryStore):
    def list(self, prefix: str) -> tuple[()]:
        raise StoreUnsuitableError(f"{prefix} is not listed.", "Use another server.")


@pytest.mark.parametrize(
    ("index", "incarnation", "generation", "saved", "expected"),
    [
        (0, 1, 1, False, True),
        (1, 1, 1, False, False),  # the leader probes
        (0, 2, 1, False, True),  # the first leader may have been killed before it was done
        (0, 2, 1, True, False),
        (0, 1, 2, False, False),
    ],
)
def test_job_is_new_until_its_network_is_saved(
    index: int, incarnation: int, generation: int, *, saved: bool, expected: bool
) -> None:
    store = MemoryStore()
    store.put("uid/gen-0001/shard-0000/claim-0001", b"")
    if saved:
        store.put(SAVE, b"")
    roster = replace(
        trainer_roster(()), index=index, leader=0, incarnation=incarnation, counters=Counters(1, 1, generation)
    )
    assert is_new_job(store, roster, "uid") is expected


def test_first_leader_needs_no_listing_for_a_new_job() -> None:
    roster = replace(trainer_roster(()), index=0, leader=0, incarnation=1, counters=Counters(1, 1, 1))
    assert is_new_job(NoListings(), roster, "uid")
