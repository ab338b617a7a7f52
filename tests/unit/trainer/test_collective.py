"""An all-reduce group with a process in a member's place that has not the job's key."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from cpr_trainer.trainer.allreduce.auth import PairProofs
from cpr_trainer.trainer.allreduce.collective import Collective
from cpr_trainer.trainer.allreduce.tunnel import Entries, Entry
from cpr_trainer.trainer.control import GroupBroken
from support.wait_limit import poll_interrupts

HOST = "127.0.0.1"
PAIRS = PairProofs(b"key", "job", 1, 1, 0)


class _Table:
    """Collects the entries of all members; each waits for all others."""

    def __init__(self, members: int) -> None:
        self._all_here = threading.Barrier(members)
        self._entries: list[Entry] = []

    def exchange_addresses(self, own: Entry) -> Entries:
        self._entries.append(own)
        self._all_here.wait()
        return Entries(tuple(self._entries))


def _join(table: _Table, rank: int, members: int, pairs: PairProofs) -> Exception | None:
    """Build the group and prove the key in it; return what broke."""
    collective = Collective(table.exchange_addresses, rank, members, HOST)
    try:
        collective.prove(replace(pairs, rank=rank), poll_interrupts)
        total = torch.ones(3)
        collective.sum([total], poll_interrupts)
        assert total.tolist() == [members] * 3
    except GroupBroken as broken:
        return broken
    finally:
        collective.leave()
    return None


@pytest.mark.parametrize(
    "other", [PAIRS, replace(PAIRS, key=b"guess"), replace(PAIRS, generation=2), replace(PAIRS, group=2)]
)
def test_members_sum_only_with_peers_that_prove_the_groups_key(other: PairProofs) -> None:
    table = _Table(3)
    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(_join, table, rank, 3, other if rank == 1 else PAIRS) for rank in range(3)]
        broken = [end.result() for end in ends]
    assert [bool(end) for end in broken] == [other is not PAIRS] * 3
    assert other is PAIRS or "the place of trainer 1" in str(broken[0])


def test_echoed_challenge_proves_nothing() -> None:
    sent = [bytes([rank]) * 32 for rank in range(2)]
    assert PAIRS.unauthenticated_ranks(PAIRS.proofs(sent, sent), sent, sent) == [1]
