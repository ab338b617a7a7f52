"""Proofs of the job's key between trainers: on a control connection, and between the members of a dense group.

The first is the handshake of `cpr_trainer.exchange`. In the second each member asks every other with a nonce of its
own, and each answers over the connection of that pair. Gloo connects a pair from one fixed side to an address that the
rendezvous told, so a stranger can sit on the listening side only, and has nobody to pass a question on to.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from cpr_trainer.trainer.allreduce.frames import Frame, Kind, ProtocolError, receive_frame, send_frame

#: Of a nonce, and of a proof.
PAIR_BYTES = 32


@dataclass(frozen=True, slots=True)
class PairProofs:
    """What the member `rank` of a dense group answers to the others, and expects of them."""

    key: bytes
    job_uid: str
    group: int
    generation: int
    rank: int

    def proofs(self, asked_by: Sequence[bytes], asked: Sequence[bytes]) -> list[bytes]:
        """Return the proof for each rank r, which asked with `asked_by[r]` and was asked with `asked[r]`."""
        both = enumerate(zip(asked_by, asked, strict=True))
        return [self._proof(self.rank, other, theirs, mine) for other, (theirs, mine) in both]

    def unauthenticated_ranks(
        self, proofs: Sequence[bytes], asked: Sequence[bytes], asked_by: Sequence[bytes]
    ) -> list[int]:
        """Return the ranks whose proof does not hold."""
        every = enumerate(zip(proofs, asked, asked_by, strict=True))
        return [
            other
            for other, (proof, mine, theirs) in every
            if not hmac.compare_digest(proof, self._proof(other, self.rank, mine, theirs))
        ]

    def _proof(self, prover: int, verifier: int, question: bytes, own: bytes) -> bytes:
        # Fixed lengths but for the uid, which comes last: no two sets of values give the same bytes.
        numbers = (self.group, self.generation, prover, verifier)
        text = b"pair" + b"".join(n.to_bytes(8) for n in numbers) + question + own + self.job_uid.encode()
        return hmac.new(self.key, text, hashlib.sha256).digest()


def authenticate(connection: socket.socket, deadline: float, key: bytes, me: Identity, peer: Peer) -> None:
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


def accept_peer(connection: socket.socket, deadline: float, key: bytes, me: Identity) -> None:
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
