"""Counts, in a file that the bench reads, what a member sends to other members and how much its log of pushes takes."""

from __future__ import annotations

import threading
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_contract.env import ROLE_SHARD
from cpr_trainer.exchange.frames import HEADER_BYTES, FrameWriter, Header
from cpr_trainer.exchange.ring import Block, Ring
from cprjob_bench.documents.redundancy import Counts


def count(path: Path, role: str, log_bytes: int) -> None:
    """Count from here on, also in processes that this one forks. log_bytes: the memory for pushes; 0: there is none.

    A frame counts when it is handed to its connection. Handshakes and heartbeats count, the kernel's own headers do
    not.
    """
    counts = np.memmap(path, np.int64, "w+", shape=(len(Counts.FIELDS),))
    lock, add, take = threading.Lock(), FrameWriter.add, Ring.take

    def counted_add(writer: FrameWriter, header: Header, *payload: Any) -> None:
        with lock:
            counts[0] += HEADER_BYTES + header.payload_bytes
        add(writer, header, *payload)

    def counted_take(ring: Ring, size_bytes: int, step: int) -> Block | None:
        block = take(ring, size_bytes, step)
        counts[1] = int(ring.fill * log_bytes)
        return block

    FrameWriter.add = counted_add  # type: ignore[assignment,method-assign]
    Ring.take = counted_take  # type: ignore[assignment,method-assign]
    if role == ROLE_SHARD:
        _time_rebuild(counts)


def _time_rebuild(counts: NDArray[np.int64]) -> None:
    from cpr_trainer.shard.redundancy import Redundancy  # noqa: PLC0415 -- trainers do not load it

    rebuild = Redundancy.rebuild

    def timed_rebuild(redundancy: Redundancy, *arguments: Any) -> Any:
        began_s = thread_time()
        found = rebuild(redundancy, *arguments)
        counts[2] = int(1e6 * (thread_time() - began_s))
        return found

    Redundancy.rebuild = timed_rebuild  # type: ignore[assignment,method-assign]
