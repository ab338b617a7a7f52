"""Memory for received rows is reused, and never while it is referenced."""

from __future__ import annotations

import numpy as np

from cpr_trainer.parity.peer_connection import BufferPool


def test_pooled_memory_is_reused_once_unreferenced() -> None:
    memory = BufferPool()
    first = memory.take(100)
    second = memory.take(100)
    first[:], second[:] = b"a" * 100, b"b" * 100
    address = np.frombuffer(first, np.uint8).ctypes.data
    rows = np.frombuffer(first, np.uint32, 20, 4).reshape(4, 5)[1:]
    del first
    third = memory.take(100)
    third[:] = b"c" * 100
    assert rows.tobytes() == b"a" * 60, "an array that was made of it holds it"
    del rows
    fourth = memory.take(80)
    assert np.frombuffer(fourth, np.uint8).ctypes.data == address
    assert (len(fourth), bytes(second), bytes(third)) == (80, b"b" * 100, b"c" * 100)


def test_pool_allocates_memory_for_a_longer_payload() -> None:
    memory = BufferPool()
    memory.take(10)
    longer = memory.take(1000)
    longer[:] = bytes(1000)
    assert len(longer) == 1000
