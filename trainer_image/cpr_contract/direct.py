"""Rosters that the operator sends to a pod itself, ahead of the file that the kubelet makes: how they are signed."""

from __future__ import annotations

import hashlib
import hmac

#: The page of a pod's HTTP port that takes them by POST, and the header with the signature.
PAGE = "/roster"
SIGNATURE = "X-CPRJob-Signature"
#: The longest roster: Kubernetes takes no longer annotations.
MAX_ROSTER_BYTES = 256 << 10


def signature(key: bytes, pod: str, roster: bytes) -> str:
    """Return what proves, in hex digits, that who knows the job's key means this roster for the pod of that name."""
    return hmac.new(key, b"cprjob roster\n" + pod.encode() + b"\n" + roster, hashlib.sha256).hexdigest()


def is_signed(key: bytes, pod: str, roster: bytes, told: str) -> bool:
    """Whether `told` is the signature; compared in a time that tells nothing."""
    return hmac.compare_digest(signature(key, pod, roster).encode(), told.encode())
