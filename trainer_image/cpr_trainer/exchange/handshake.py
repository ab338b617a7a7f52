"""Who is who: both sides prove that they know the job's key, and a trainer says in every frame who it is.

trainer                                shard
      HELLO      who I am, whom I expect, nonce  ->
      <-  CHALLENGE  who I am, nonce, HMAC(key, "responder", hello, challenge)
      PROOF      HMAC(key, "initiator", hello, challenge)  ->
      <-  WELCOME or ERROR

Fresh nonces of both sides enter both proofs, so neither can be replayed; the role in them keeps one from being
mirrored as the other. No I/O here: each side is a small state machine over bytes. The trainers' group uses it too.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from typing import TypeVar

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.roster import Counters, Peer
from cpr_contract.spec import steps_in
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Header, Operation

NONCE_BYTES = 16
#: No document of a handshake is longer; a stranger cannot make us buffer more.
LIMIT_BYTES = 4096


Document = TypeVar("Document")


class HandshakeError(Exception):
    """The other side is not who it should be; the message may be told to both."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of a job: `role` as in the contract, `index` of a shard or trainer, one process start of it."""

    job_uid: str
    role: str
    index: int
    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True)
class Hello:
    """First words: who calls, whom its roster names, and how it packs rows, if it sends any. `nonce` is hex."""

    caller: Identity
    callee: Identity
    nonce: str
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer: who was reached, and how it packs rows. `nonce` and `proof` are hex."""

    callee: Identity
    nonce: str
    proof: str
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """The last word, hex."""

    proof: str


class Initiator:
    """The side that connects. `nonce` must be fresh random bytes."""

    def __init__(
        self, key: bytes, me: Identity, expected: Identity, nonce: bytes, encoding: Encoding | None = None
    ) -> None:
        self._key = key
        self._expected = expected
        self._encoding = encoding
        self._hello = to_json(Hello(me, expected, nonce.hex(), encoding)).encode()

    def hello(self) -> bytes:
        """Return the payload of HELLO."""
        return self._hello

    def prove(self, payload: bytes) -> tuple[bytes, Identity]:
        """Check a CHALLENGE; return the payload of PROOF and who answered (its generation may be another).

        Raises HandshakeError if it does not know the key, or is not whom the roster names.
        """
        challenge = _read(Challenge, payload)
        unsigned = to_json(replace(challenge, proof="")).encode()
        if not _same(challenge.proof, _proof(self._key, b"responder", self._hello, unsigned)):
            raise HandshakeError(f"{_name(self._expected)} does not hold this job's key")
        if _member(challenge.callee) != _member(self._expected):
            raise HandshakeError(f"expected {_name(self._expected)}, reached {_name(challenge.callee)}")
        _agree(self._encoding, challenge.encoding)
        return to_json(Proof(_proof(self._key, b"initiator", self._hello, unsigned))).encode(), challenge.callee


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

        Raises HandshakeError if the caller is of another job, or packs rows in another way.
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
        """Check a PROOF; return what the caller said. Raises HandshakeError if it does not know the key."""
        hello = _read(Hello, self._hello)
        proof = _read(Proof, payload).proof
        if not _same(proof, _proof(self._key, b"initiator", self._hello, self._unsigned)):
            raise HandshakeError(f"{_name(hello.caller)} does not hold this job's key")
        return hello


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
    """Both sides know the job: they differ only where one is of another release."""
    if mine != theirs:
        raise HandshakeError(f"rows are packed as {theirs} there, and as {mine} here")


def _same(one: str, other: str) -> bool:
    """Compare in a time that tells nothing of where they differ."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _member(identity: Identity) -> tuple[str, str, int, int]:
    return identity.job_uid, identity.role, identity.index, identity.incarnation


def _name(identity: Identity) -> str:
    return f"{identity.role}/{identity.index} incarnation {identity.incarnation}"


# What one trainer says about itself in every frame.


_NO_ROSTER = Counters(roster=0, group=0, generation=0)


@dataclass(slots=True)
class Session:
    """A trainer and where it stands. The last three change: they are guarded by the exchange's lock."""

    job_uid: str
    rank: int
    incarnation: int
    key: bytes
    encoding: Encoding
    total_samples: int
    silence_s: float
    batch_size: int
    counters: Counters = _NO_ROSTER
    cut_step: int = 0
    newest_roster_seen: int = 0

    def last_step(self, samples: int) -> int:
        """Return the last step that ends by this sample; the last of all where that is the end."""
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

    def me(self) -> Identity:
        """Return who this trainer is."""
        return Identity(self.job_uid, ROLE_TRAINER, self.rank, self.incarnation, self.counters.generation)

    def expected(self, peer: Peer) -> Identity:
        """Return who the roster says a shard is."""
        return Identity(self.job_uid, ROLE_SHARD, peer.index, peer.incarnation, self.counters.generation)
