"""Memory of any kind as bytes."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from cpr_trainer.store import checksum, transfers
from cpr_trainer.store.transfers import SLICE_BYTES, extended, flat, size_of, slices


def test_checksum_is_crc32c() -> None:
    assert checksum(b"123456789") == 0xE3069283  # the check value of the Castagnoli polynomial
    assert checksum(b"") == checksum(()) == 0


@pytest.mark.parametrize("split", [0, 1, 4, 9])
def test_checksum_covers_buffers_in_order(split: int) -> None:
    data = bytearray(b"123456789")
    assert checksum((memoryview(data)[:split], bytes(data[split:]))) == 0xE3069283


def by_definition(data: bytes) -> int:
    """CRC-32C bit by bit: the polynomial 0x1EDC6F41, reflected (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_checksum_of_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "SLICE_BYTES", 1000)
    data = bytes(range(256)) * 12 + b"rest"
    assert checksum(memoryview(data)) == checksum(bytearray(data)) == by_definition(data)


def test_checksum_lets_other_threads_run() -> None:
    """Otherwise pushes wait for saves."""
    data = memoryview(bytearray(SLICE_BYTES))
    may_run, ran = threading.Event(), threading.Event()

    def run() -> None:
        may_run.wait()
        ran.set()

    thread = threading.Thread(target=run)
    thread.start()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # no forced switch: others run only while the lock is released
    try:
        may_run.set()
        while not ran.is_set():
            extended(0, data)
    finally:
        sys.setswitchinterval(interval_s)
        thread.join()


def test_numbers_are_viewed_as_bytes_without_a_copy() -> None:
    rows = np.zeros((3, 4), np.float32)
    (view,) = flat((rows.data, b""))
    assert (view.format, view.nbytes, view.ndim) == ("B", 48, 1)
    view[:4] = b"\x00\x00\x80\x3f"
    assert rows[0, 0] == 1.0


def test_slices_cover_views_in_order_without_a_copy() -> None:
    data = bytearray(2 * SLICE_BYTES + 1)
    views = flat((data, b"end"))
    pieces = list(slices(views))
    assert [len(piece) for piece in pieces] == [SLICE_BYTES, SLICE_BYTES, 1, 3]
    assert size_of(views) == len(data) + 3
    pieces[2][0] = 7
    assert data[-1] == 7


def test_memory_with_gaps_is_refused() -> None:
    with pytest.raises(TypeError, match="contiguous"):
        flat(memoryview(bytes(10))[::2])
