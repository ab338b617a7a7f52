from __future__ import annotations

import socket
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.exchange.frames import HEADER_BYTES, Frame, FrameError, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.exchange.handshake import LIMIT_BYTES

HEADER = Header(
    Operation.PUSH,
    roster=1,
    group=2,
    generation=3,
    rank=4,
    step=5,
    cut_step=6,
    saved_step=7,
    saved_samples=8,
    total_samples=9,
    row_updates=10,
    ticket=11,
    count=12,
    payload_bytes=13,
    order=14,
    protected_step=15,
)
GOLDEN = (
    "43505246"
    "0400"
    "07"
    "00"  # magic, version, operation, plain
    "01000000"
    "02000000"
    "03000000"
    "04000000"  # roster, group, generation, rank
    "0500000000000000"
    "0600000000000000"  # step, cut step
    "0700000000000000"
    "0800000000000000"
    "0900000000000000"
    "0a00000000000000"  # saved step and samples, total samples, row updates
    "0b000000"
    "0c000000"
    "0d00000000000000"  # ticket, count, payload bytes
    "0e00000000000000"  # order
    "0f00000000000000"  # protected step
)


def test_the_header_on_the_wire() -> None:
    assert HEADER.pack().hex() == GOLDEN
    assert HEADER_BYTES == 104
    assert Header.unpack(bytes.fromhex(GOLDEN)) == HEADER


def test_operations_keep_their_numbers() -> None:
    numbers = " ".join(f"{operation.name}={operation}" for operation in Operation)
    assert numbers == (
        "HELLO=1 CHALLENGE=2 PROOF=3 WELCOME=4 LOOKUP=5 VECTORS=6 PUSH=7 ACK=8 PING=9 PONG=10 STALE=11 NOT_READY=12 "
        "ERROR=13 COMMIT=19 RECEIVED=20 FLUSH=14 QUERY_POSITION=15 POSITION=16 READ=17 ROWS=18"
    )


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(0, 0, "not a frame"), (4, 1, "version 1"), (6, 99, "99"), (6, 0, "0"), (7, 1, "not a frame")],
)
def test_malformed_frame_is_refused(place: int, value: int, message: str) -> None:
    data = bytearray(HEADER.pack())
    data[place] = value
    with pytest.raises(FrameError, match=message):
        Header.unpack(data)


def ping(payload: bytes = b"") -> Header:
    return Header(Operation.PING, payload_bytes=len(payload))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=200), max_size=5), st.lists(st.integers(1, 120), min_size=1, max_size=4))
def test_frames_arrive_whole_however_the_bytes_are_cut(payloads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(ping(payload).pack() + payload for payload in payloads)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.settimeout(0.0)
        reader, found, at = FrameReader(1000), [], 0
        for number in range(10_000):
            piece = stream[at : at + sizes[number % len(sizes)]]
            at += len(piece)
            sender.sendall(piece)
            while (frame := reader.read(receiver)) is not None:
                found.append(bytes(frame.payload))
            if not piece:
                break
        assert found == payloads
        sender.close()
        with pytest.raises(ConnectionResetError):
            reader.read(receiver)


def test_more_than_a_socket_takes_at_once_is_sent_bit_by_bit() -> None:
    payload = bytes(range(256)) * 40_000
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.settimeout(0.0)
        receiver.settimeout(0.0)
        writer, reader = FrameWriter(), FrameReader(len(payload))
        for _ in range(3):
            writer.add(ping(payload), payload[:1000], payload[1000:])
        writer.flush(sender)
        assert not writer.idle
        found = 0
        while found < 3:
            frame = reader.read(receiver)
            writer.flush(sender)
            if frame is not None:
                assert bytes(frame.payload) == payload
                found += 1
        assert writer.idle


def test_payloads_go_where_they_belong() -> None:
    target = bytearray(4)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.settimeout(0.0)
        reader = FrameReader(100, lambda header: memoryview(target) if header.operation is Operation.PING else None)
        sender.sendall(ping(b"here").pack() + b"here")
        assert reader.read(receiver) is not None
        assert target == b"here"
        sender.sendall(ping(b"too long").pack())
        with pytest.raises(FrameError, match="expected 4"):
            reader.read(receiver)


def test_a_payload_over_the_limit_is_refused_before_it_is_read() -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.settimeout(0.0)
        sender.sendall(Header(Operation.HELLO, payload_bytes=2**40).pack())
        with pytest.raises(FrameError, match="over the limit of 4096"):
            FrameReader(4096).read(receiver)


def test_a_detached_frame_keeps_its_payload() -> None:
    buffer = bytearray(b"before")
    frame = Frame(ping(), memoryview(buffer))
    detached = frame.detached()
    buffer[:] = b"behind"
    assert bytes(detached.payload) == b"before"
    assert bytes(frame.payload) == b"behind"


def test_reader_of_an_unknown_client_costs_no_more_than_its_longest_frame() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader(LIMIT_BYTES) for _ in range(100)]
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < len(readers) * LIMIT_BYTES
