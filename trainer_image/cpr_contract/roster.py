"""Rosters: what the operator tells each pod, how one that it sends itself is signed, and the job's key.

`generation` rises at each rollback, `group` whenever the set of trainers changes, `roster` at any change. Every pod has
its own roster document; it knows from it who it is. A roster never shrinks in `roster`; a pod ignores an older one.
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
    """A member of the job, and where it listens. `host` is empty while its pod has no address yet."""

    index: int
    incarnation: int
    host: str
    port_base: int


@dataclass(frozen=True, slots=True)
class AnchorRef:
    """A committed anchor: its dense manifest's key and SHA-256 (hex), and where in the data it lies."""

    key: str
    digest: str
    generation: int
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class ShardRoster:
    """What shard `index` needs to know.

    `anchor` is what this generation starts from; None means step 0 (seed values, or `restore_from`).
    `floor_samples` is the oldest save, in samples, that a restoring shard may serve. `may_restore` is False while its
    predecessor may still commit a flush: the shard starts, and waits before it chooses a save.
    `newest_incarnation` above `incarnation` tells a fenced-off process to exit. `stop` asks for what SIGTERM asks for:
    save what no save holds, and exit; the pod's object stays, so its last word cannot be missed. `priority_interval_s`
    is the planned time between two saves of the most important rows, 0 for none. Rows are stored in `stored_bits` a
    value, but exactly by a flush and at the last cut. `shards` are those that it has parity in common with; without
    parity there are none.
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
    """Leave to train without the incarnation of `shard` that the roster names, until it has been ready once.

    Steps that end after sample `until` wait for it.
    """

    shard: int
    until: int


@dataclass(frozen=True, slots=True)
class TrainerRoster:
    """What trainer `index` needs to know: the whole compact list, and who leads.

    `interval_s` is the planned time between two cuts; `dense_floor_samples` the oldest dense save that may be used when
    no trainer survived. Trainers never take part in one step under different roster numbers of `group` or `generation`.
    `stop` asks for what SIGTERM asks for. `meet` asks trainers without lockstep to come together at one step, to be
    saved there as one anchor, and to stand until it does so no more. For shards without an `allowances` entry training
    waits.
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


# Rosters that the operator sends to a pod itself, ahead of the file that the kubelet makes: how they are signed.


#: The page of a pod's HTTP port that takes them by POST, and the header with the signature.
ROSTER_PAGE = "/roster"
ROSTER_SIGNATURE = "X-CPRJob-Signature"
#: The longest roster: Kubernetes takes no longer annotations.
MAX_ROSTER_BYTES = 256 << 10


def signature(key: bytes, pod: str, roster: bytes) -> str:
    """Return what proves, in hex digits, that who knows the job's key means this roster for the pod of that name."""
    return hmac.new(key, b"cprjob roster\n" + pod.encode() + b"\n" + roster, hashlib.sha256).hexdigest()


def is_signed(key: bytes, pod: str, roster: bytes, told: str) -> bool:
    """Return whether `told` is the signature; compared in a time that tells nothing."""
    return hmac.compare_digest(signature(key, pod, roster).encode(), told.encode())


def seal(key: bytes, pod: str, recorded: str) -> str:
    """Return the header's value: what the job's status holds, with the proof that an owner of the key says so."""
    return f"{_seal(key, pod, recorded)} {recorded}"


def unseal(key: bytes, pod: str, value: str) -> str | None:
    """Return what was sealed for the pod of that name; None if the proof is wrong."""
    proof, _, recorded = value.partition(" ")
    right = hmac.compare_digest(_seal(key, pod, recorded).encode(), proof.encode(errors="replace"))
    return recorded if right else None


def _seal(key: bytes, pod: str, recorded: str) -> str:
    text = b"cprjob recorded\n" + pod.encode() + b"\n" + recorded.encode(errors="replace")
    return hmac.new(key, text, hashlib.sha256).hexdigest()


# The job's handshake key, as far as both sides must agree on it: how it is told from another one.


#: The reason by which a process says that its key is not the one that the job has.
KEY_CHANGED = "KeyChanged"

_DIGITS = 16


def key_digest(key: bytes) -> str:
    """Return what names a key and tells nothing about it: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(key).hexdigest()[:_DIGITS]
