"""The job's handshake key, as far as both sides must agree on it: how it is told from another one."""

from __future__ import annotations

import hashlib

#: The reason by which a process says that its key is not the one that the job has.
KEY_CHANGED = "KeyChanged"

_DIGITS = 16


def key_digest(key: bytes) -> str:
    """Return what names a key and tells nothing about it: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(key).hexdigest()[:_DIGITS]
