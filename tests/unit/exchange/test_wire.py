"""What a reader holds for somebody who has said nothing yet."""

from __future__ import annotations

import tracemalloc

from cpr_trainer.exchange.frames import FrameReader
from cpr_trainer.exchange.handshake import LIMIT_BYTES


def test_a_stranger_costs_no_more_than_its_longest_words() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader(LIMIT_BYTES) for _ in range(100)]
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < len(readers) * LIMIT_BYTES
