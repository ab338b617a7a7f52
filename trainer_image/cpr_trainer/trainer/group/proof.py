"""The handshake of `cpr_trainer.exchange` on a control connection."""

from __future__ import annotations

import secrets
import socket
from dataclasses import replace
from time import monotonic

from cpr_contract.roster import Peer
from cpr_trainer.exchange.handshake import (
    LIMIT_BYTES,
    NONCE_BYTES,
    HandshakeError,
    Identity,
    Initiator,
    Responder,
)
from cpr_trainer.trainer.group.frames import Frame, Kind, ProtocolError, receive_frame, send_frame


def introduce(connection: socket.socket, deadline: float, key: bytes, me: Identity, peer: Peer) -> None:
    """Prove the key to the trainer `peer`, which was called, and check its proof. Raises OSError.

    `deadline` is a point of `monotonic`.
    """
    expected = replace(me, index=peer.index, incarnation=peer.incarnation)
    initiator = Initiator(key, me, expected, secrets.token_bytes(NONCE_BYTES))
    _say(connection, deadline, me, initiator.hello())
    try:
        proof, _ = initiator.prove(_hear(connection, deadline))
    except HandshakeError as error:
        raise ProtocolError(str(error)) from error
    _say(connection, deadline, me, proof)


def welcome(connection: socket.socket, deadline: float, key: bytes, me: Identity) -> None:
    """Check the proof of whoever called, and prove the key to it. Raises OSError.

    `deadline` is a point of `monotonic`.
    """
    responder = Responder(key, me, secrets.token_bytes(NONCE_BYTES))
    try:
        _say(connection, deadline, me, responder.challenge(_hear(connection, deadline)))
        responder.accept(_hear(connection, deadline))
    except HandshakeError as error:
        raise ProtocolError(str(error)) from error


def _say(connection: socket.socket, deadline: float, me: Identity, document: bytes) -> None:
    connection.settimeout(max(deadline - monotonic(), 0.001))
    send_frame(connection, Frame(Kind.PROVE, me.index, payload=document))


def _hear(connection: socket.socket, deadline: float) -> bytes:
    return bytes(receive_frame(connection, limit_bytes=LIMIT_BYTES, deadline=deadline).payload)
