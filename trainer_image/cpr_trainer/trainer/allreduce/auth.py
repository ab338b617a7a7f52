"""Proofs of the job's key between trainers: on control connections, and between the members of an all-reduce group.

Control connections use the handshake of `cpr_trainer.exchange`. In an all-reduce group each member sends every other
one a nonce, and receives the proof over the connection of that pair. Gloo always connects a pair from the same side, to
an address of the address store, so an attacker can only listen, and cannot relay challenges.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
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
    check_certificate,
)
from cpr_trainer.runtime import Stream
from cpr_trainer.trainer.allreduce.transport import Frame, Kind, ProtocolError, receive_frame, send_frame

#: Length of a nonce, and of a proof.
PAIR_BYTES = 32


@dataclass(frozen=True, slots=True)
class PairProofs:
    """Makes the proofs of the member `rank` of an all-reduce group, and checks those of the others.

    In both methods item r of a sequence belongs to rank r. `sent` are this member's nonces, `received` the others'.
    """

    key: bytes
    job_uid: str
    group: int
    generation: int
    rank: int

    def proofs(self, received: Sequence[bytes], sent: Sequence[bytes]) -> list[bytes]:
        """Return the proof for each rank."""
        return [
            self._proof(self.rank, other, theirs, mine)
            for other, (theirs, mine) in enumerate(zip(received, sent, strict=True))
        ]

    def unauthenticated_ranks(
        self, proofs: Sequence[bytes], sent: Sequence[bytes], received: Sequence[bytes]
    ) -> list[int]:
        """Return the ranks with a wrong proof."""
        return [
            other
            for other, (proof, mine, theirs) in enumerate(zip(proofs, sent, received, strict=True))
            if not hmac.compare_digest(proof, self._proof(other, self.rank, mine, theirs))
        ]

    def _proof(self, prover: int, verifier: int, challenge: bytes, own: bytes) -> bytes:
        # All lengths are fixed but that of the uid, which comes last: different values never give the same bytes.
        numbers = (self.group, self.generation, prover, verifier)
        text = b"pair" + b"".join(n.to_bytes(8) for n in numbers) + challenge + own + self.job_uid.encode()
        return hmac.new(self.key, text, hashlib.sha256).digest()


def authenticate(connection: Stream, deadline: float, key: bytes, me: Identity, peer: Peer) -> None:
    """Connecting side: prove the key to the trainer `peer`, and check its proof. Raises OSError.

    `deadline` is a time of `monotonic`.
    """
    expected = replace(me, index=peer.index, incarnation=peer.incarnation)
    initiator = Initiator(key, me, expected, secrets.token_bytes(NONCE_BYTES))
    _send(connection, deadline, me, initiator.hello)
    try:
        proof, _ = initiator.prove(_receive(connection, deadline))
    except HandshakeError as error:
        raise ProtocolError(str(error)) from error
    _send(connection, deadline, me, proof)


def accept_peer(connection: Stream, deadline: float, key: bytes, me: Identity) -> None:
    """Accepting side: check the caller's proof, and prove the key to it. Raises OSError.

    `deadline` is a time of `monotonic`.
    """
    responder = Responder(key, me, secrets.token_bytes(NONCE_BYTES))
    try:
        _send(connection, deadline, me, responder.challenge(_receive(connection, deadline)))
        check_certificate(connection, responder.accept(_receive(connection, deadline)).caller)
    except HandshakeError as error:
        raise ProtocolError(str(error)) from error


def _send(connection: Stream, deadline: float, me: Identity, document: bytes) -> None:
    connection.settimeout(max(deadline - monotonic(), 0.001))
    send_frame(connection, Frame(Kind.PROVE, me.index, payload=document))


def _receive(connection: Stream, deadline: float) -> bytes:
    return bytes(receive_frame(connection, limit_bytes=LIMIT_BYTES, deadline=deadline).payload)
