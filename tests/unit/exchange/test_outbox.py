"""The bound of the pushes on their way to a shard: they wait in its memory for the other ranks."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_trainer.exchange.outbox import Outbox, Push

MIB = 1 << 20


def push(step: int, size_bytes: int) -> Push:
    return Push(step, np.zeros(0, np.int32), (np.zeros(size_bytes // 4, np.float32),), 0)


@pytest.mark.parametrize(
    ("size_bytes", "at_once"),
    [(1000, 8), (MIB, 4), (3 * MIB // 2, 2), (100 * MIB, 2)],
    ids=["at most that number", "as many as fit", "no more than fit", "two in any case"],
)
def test_pushes_on_their_way_are_bounded_by_number_and_by_size(size_bytes: int, at_once: int) -> None:
    outbox = Outbox()
    for step in range(1, 21):
        outbox.add(push(step, size_bytes))
    assert [each.step for each in outbox.next_to_send()] == [*range(1, at_once + 1)]
    assert list(outbox.next_to_send()) == []
    outbox.acknowledge(1, 0)
    assert [each.step for each in outbox.next_to_send()] == [at_once + 1]
    outbox.connection_lost()
    assert [each.step for each in outbox.next_to_send()] == [*range(2, at_once + 2)]
