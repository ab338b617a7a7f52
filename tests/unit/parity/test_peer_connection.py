"""The memory that rows come in is used again, and never while somebody holds them."""

from __future__ import annotations

import numpy as np

from cpr_trainer.parity.peer_connection import BufferPool


def test_memory_is_used_again_once_nothing_refers_to_what_was_in_it() -> None:
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


def test_more_is_taken_where_a_longer_payload_comes() -> None:
    memory = BufferPool()
    memory.take(10)
    longer = memory.take(1000)
    longer[:] = bytes(1000)
    assert len(longer) == 1000
