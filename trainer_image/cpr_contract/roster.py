"""Rosters, the operator's documents for its pods, their signatures, and the digest of the job's key.

`generation` rises at each rollback, `group` whenever the set of trainers changes, `roster` at any change. Every pod has
its own roster, which contains its identity. The number `roster` never falls; a pod ignores an older one.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from cpr_contract.choices import Bits


@dataclass(frozen=True, slots=True)
class Counters:
    """The three counters of every frame, report and manifest."""

    roster: int
    group: int
    generation: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the job and its address. `host` is empty while its pod has no address yet."""

    index: int
    incarnation: int
    host: str
    port_base: int


@dataclass(frozen=True, slots=True)
class AnchorRef:
    """A committed anchor: its dense manifest's key and SHA-256 (hex), and its position in the data."""

    key: str
    digest: str
    generation: int
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class ShardRoster:
    """The roster of shard `index`.

    `anchor` is the start of this generation; None means step 0 (seed values, or `restore_from`).
    `floor_samples` is the oldest save, in samples, that a restoring shard may serve. `may_restore` is False while its
    predecessor may still commit a flush: the shard starts, and waits before it chooses a save.
    A process with `incarnation` below `newest_incarnation` is fenced off and must exit. `stop` has the effect of
    SIGTERM: the shard flushes and exits, but its pod's object stays, so the operator cannot miss its termination
    message. `priority_interval_s` is the planned time between two saves of the most important rows, 0 for none. Rows
    are stored in `stored_bits` a value, but exactly by a flush and at the last cut. `shards` share a parity with it;
    empty without parity.
    """

    contract: int
    counters: Counters
    index: int
    incarnation: int
    newest_incarnation: int
    may_restore: bool
    floor_samples: int
    anchor: AnchorRef | None
    trainers: int
    stop: bool = False
    priority_interval_s: float = 0.0
    stored_bits: Bits = 32
    shards: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class Allowance:
    """Permission to train without the roster's incarnation of `shard`, until it has been ready once.

    Steps that end after sample `until` wait for it.
    """

    shard: int
    until: int


@dataclass(frozen=True, slots=True)
class TrainerRoster:
    """The roster of trainer `index`: all members, and the index of the leader.

    `interval_s` is the planned time between two cuts; `dense_floor_samples` the oldest dense save that may be used when
    no trainer survived. All trainers of a step have the same `group` and `generation`.
    `stop` has the effect of SIGTERM. `meet` requests trainers without lockstep to stop at one step, to save one anchor
    there, and to wait until it is unset. Training waits for lost shards without an entry in `allowances`.
    """

    contract: int
    counters: Counters
    index: int
    incarnation: int
    newest_incarnation: int
    leader: int
    trainers: tuple[Peer, ...]
    shards: tuple[Peer, ...]
    anchor: AnchorRef | None
    dense_floor_samples: int
    interval_s: float
    stop: bool = False
    meet: bool = False
    allowances: tuple[Allowance, ...] = ()


# --- signatures of rosters that the operator posts to a pod, before the kubelet updates the file ---

#: The path on a pod's HTTP port for such a POST, and the header with the signature.
ROSTER_PAGE = "/roster"
ROSTER_SIGNATURE = "X-CPRJob-Signature"
#: The maximum size of a roster: that of annotations in Kubernetes.
MAX_ROSTER_BYTES = 256 << 10


def signature(key: bytes, pod: str, roster: bytes) -> str:
    """Return the HMAC, in hex digits, of a roster and the name of its pod under the job's key."""
    return _hmac(key, "roster", pod, roster)


def is_signed(key: bytes, pod: str, roster: bytes, given: str) -> bool:
    """Return whether `given` is the signature, compared in constant time."""
    return hmac.compare_digest(signature(key, pod, roster).encode(), given.encode())


def seal(key: bytes, pod: str, recorded: str) -> str:
    """Return the value of `RECORDED_HEADER`: an encoded `Recorded` with its HMAC."""
    return f"{_hmac(key, 'recorded', pod, recorded.encode(errors='replace'))} {recorded}"


def unseal(key: bytes, pod: str, value: str) -> str | None:
    """Return the `recorded` of a sealed value; None if the HMAC is wrong."""
    proof, _, recorded = value.partition(" ")
    expected = _hmac(key, "recorded", pod, recorded.encode(errors="replace"))
    return recorded if hmac.compare_digest(expected.encode(), proof.encode(errors="replace")) else None


def _hmac(key: bytes, kind: str, pod: str, content: bytes) -> str:
    return hmac.new(key, f"cprjob {kind}\n{pod}\n".encode() + content, hashlib.sha256).hexdigest()


# --- the job's handshake key, and the names in certificates ---

#: The reason of a process's problem if its key is not the job's.
KEY_CHANGED = "KeyChanged"

_DIGITS = 16


def key_digest(key: bytes) -> str:
    """Return the first 16 hex digits of a key's SHA-256, which identify it without disclosing it."""
    return hashlib.sha256(key).hexdigest()[:_DIGITS]


def certificate_name(job_uid: str, role: str, index: int = 0) -> str:
    """Return the DNS name in the certificate of a member, or of another process of a job."""
    return f"{role}-{index}.{job_uid}"
