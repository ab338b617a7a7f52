import socket
from collections.abc import Iterator

import pytest

from cpr_trainer.trainer.allreduce.transport import Frame, Kind, ProtocolError, header_of, receive_frame, send_frame


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        yield ends


def test_header_has_fixed_bytes() -> None:
    frame = Frame(Kind.GO, rank=3, step=5, cut_step=8, payload=b"ab")

    assert header_of(frame).hex() == "4350525401060003000000000000000500000000000000080000000000000002"


def test_frame_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    for sent in (Frame(Kind.PING, 1), Frame(Kind.STATE, 2, 7, 0, bytes(range(256)) * 100)):
        send_frame(pair[0], sent)
        assert receive_frame(pair[1]) == sent


@pytest.mark.parametrize("damage", [(0, b"HTTP"), (4, b"\x09"), (5, b"\x63")], ids=["magic", "version", "kind"])
def test_noise_is_no_frame(pair: tuple[socket.socket, socket.socket], damage: tuple[int, bytes]) -> None:
    place, noise = damage
    header = bytearray(header_of(Frame(Kind.PING, 1)))
    header[place : place + len(noise)] = noise
    pair[0].sendall(header)

    with pytest.raises(ProtocolError):
        receive_frame(pair[1])


def test_announced_payload_above_the_limit_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    send_frame(pair[0], Frame(Kind.PROVE, 0, payload=bytes(100)))

    with pytest.raises(ProtocolError, match="100 bytes"):
        receive_frame(pair[1], limit_bytes=99)
