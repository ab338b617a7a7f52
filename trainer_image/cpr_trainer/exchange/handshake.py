"""Mutual authentication: both sides prove that they have the job's key, and every frame carries the trainer's rank.

trainer                                shard
      HELLO      identity, expected identity, nonce  ->
      <-  CHALLENGE  identity, nonce, HMAC(key, "responder", hello, challenge)
      PROOF      HMAC(key, "initiator", hello, challenge)  ->
      <-  WELCOME or ERROR

Fresh nonces of both sides enter both proofs, so neither can be replayed; the roles differ, so neither can be mirrored.
No I/O here: each side is a small state machine over bytes. The trainers' group uses it too.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from typing import TypeVar

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.roster import Counters, Peer, certificate_name
from cpr_contract.spec import steps_in
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Header, Operation
from cpr_trainer.runtime import Certificates, Stream, TlsConnection

NONCE_BYTES = 16
#: The longest document of a handshake: an unauthenticated peer cannot make us buffer more.
LIMIT_BYTES = 4096
_NO_ROSTER = Counters(roster=0, group=0, generation=0)

Document = TypeVar("Document")


class HandshakeError(Exception):
    """The other side has the wrong identity or key; the message may be sent to it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of a job: `role` as in the contract, `index` of the shard or trainer, and its incarnation."""

    job_uid: str
    role: str
    index: int
    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: the caller, the expected callee, and the encoding of rows, if any. `nonce` is hex."""

    caller: Identity
    callee: Identity
    nonce: str
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer: the callee, and its encoding of rows. `nonce` and `proof` are hex."""

    callee: Identity
    nonce: str
    proof: str
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """The last message. `proof` is hex."""

    proof: str


class Initiator:
    """The side that connects. `nonce` must be fresh random bytes. `hello` is the payload of HELLO."""

    def __init__(
        self, key: bytes, me: Identity, expected: Identity, nonce: bytes, encoding: Encoding | None = None
    ) -> None:
        self._key = key
        self._expected = expected
        self._encoding = encoding
        self.hello = to_json(Hello(me, expected, nonce.hex(), encoding)).encode()

    def prove(self, payload: bytes) -> tuple[bytes, Identity]:
        """Check a CHALLENGE; return the payload of PROOF and the callee (its generation may be another).

        Raises HandshakeError if it does not have the key, or has another identity than the expected one.
        """
        challenge = _read(Challenge, payload)
        unsigned = to_json(replace(challenge, proof="")).encode()
        if not _same(challenge.proof, _proof(self._key, b"responder", self.hello, unsigned)):
            raise HandshakeError(f"{_name(self._expected)} does not hold this job's key")
        if replace(challenge.callee, generation=self._expected.generation) != self._expected:
            raise HandshakeError(f"expected {_name(self._expected)}, reached {_name(challenge.callee)}")
        _agree(self._encoding, challenge.encoding)
        return to_json(Proof(_proof(self._key, b"initiator", self.hello, unsigned))).encode(), challenge.callee


class Responder:
    """The side that listens. `nonce` must be fresh random bytes."""

    def __init__(self, key: bytes, me: Identity, nonce: bytes, encoding: Encoding | None = None) -> None:
        self._key = key
        self._encoding = encoding
        self._me = me
        self._nonce = nonce
        self._hello = b""
        self._unsigned = b""

    def challenge(self, payload: bytes) -> bytes:
        """Read a HELLO and return the payload of CHALLENGE.

        Raises HandshakeError if the caller is of another job, or has another encoding of rows.
        """
        hello = _read(Hello, payload)
        if hello.caller.job_uid != self._me.job_uid:
            raise HandshakeError(f"{_name(self._me)} belongs to another job than {_name(hello.caller)}")
        _agree(self._encoding, hello.encoding)
        self._hello = payload
        challenge = Challenge(self._me, self._nonce.hex(), "", self._encoding)
        self._unsigned = to_json(challenge).encode()
        proof = _proof(self._key, b"responder", self._hello, self._unsigned)
        return to_json(replace(challenge, proof=proof)).encode()

    def accept(self, payload: bytes) -> Hello:
        """Check a PROOF; return the caller's HELLO. Raises HandshakeError if it does not have the key."""
        hello = _read(Hello, self._hello)
        proof = _read(Proof, payload).proof
        if not _same(proof, _proof(self._key, b"initiator", self._hello, self._unsigned)):
            raise HandshakeError(f"{_name(hello.caller)} does not hold this job's key")
        return hello


def check_certificate(connection: Stream, caller: Identity) -> None:
    """Raise HandshakeError if the connection is encrypted, and its certificate is not that of this caller."""
    name = certificate_name(caller.job_uid, caller.role, caller.index)
    if isinstance(connection, TlsConnection) and name not in connection.peer_names:
        raise HandshakeError(f"{_name(caller)} presents the certificate of {', '.join(sorted(connection.peer_names))}")


def _read(cls: type[Document], payload: bytes) -> Document:
    try:
        return from_json(cls, payload)
    except (ContractError, RecursionError) as error:
        raise HandshakeError(f"not a handshake: {error}") from error


def _proof(key: bytes, role: bytes, hello: bytes, unsigned: bytes) -> str:
    # Hashing each part first makes the three of fixed length: no two splits of the same bytes agree.
    parts = (hashlib.sha256(part).digest() for part in (role, hello, unsigned))
    return hmac.new(key, b"".join(parts), hashlib.sha256).hexdigest()


def _agree(mine: Encoding | None, theirs: Encoding | None) -> None:
    """Raise HandshakeError if the encodings differ, which they do only between releases."""
    if mine != theirs:
        raise HandshakeError(f"rows are packed as {theirs} there, and as {mine} here")


def _same(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _name(identity: Identity) -> str:
    return f"{identity.role}/{identity.index} incarnation {identity.incarnation}"


@dataclass(slots=True)
class Session:
    """A trainer's identity and state, as all of its frames carry it. The exchange's lock guards the last five.

    parity: shards keep parity for each other. committed: the last step that this rank has committed, -1 before it is in
    a group; `for_all`: in place of all ranks.
    """

    job_uid: str
    rank: int
    incarnation: int
    key: bytes
    encoding: Encoding
    total_samples: int
    silence_s: float
    batch_size: int
    parity: bool
    certificates: Certificates | None = None
    counters: Counters = _NO_ROSTER
    cut_step: int = 0
    newest_roster_seen: int = 0
    committed: int = -1
    for_all: bool = False

    def last_step(self, samples: int) -> int:
        """Return the last step that ends by this sample; after the last sample the last step."""
        if samples >= self.total_samples:
            return steps_in(self.total_samples, self.batch_size)
        return samples // self.batch_size

    def header(
        self, operation: Operation, step: int = 0, ticket: int = 0, count: int = 0, size_bytes: int = 0
    ) -> Header:
        """Return the header of a frame of this trainer."""
        return Header(
            operation,
            roster=self.counters.roster,
            group=self.counters.group,
            generation=self.counters.generation,
            rank=self.rank,
            step=step,
            cut_step=self.cut_step,
            total_samples=self.total_samples,
            ticket=ticket,
            count=count,
            payload_bytes=size_bytes,
        )

    def identity(self) -> Identity:
        """Return this trainer's identity."""
        return Identity(self.job_uid, ROLE_TRAINER, self.rank, self.incarnation, self.counters.generation)

    def expected(self, peer: Peer) -> Identity:
        """Return the identity of a shard in the roster."""
        return Identity(self.job_uid, ROLE_SHARD, peer.index, peer.incarnation, self.counters.generation)
