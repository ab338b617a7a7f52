"""`Store`: a flat map from keys to bytes, as little as any object store or file system offers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Store(Protocol):
    """Objects by key. Keys are relative: the store adds its bucket and prefix.

    An object appears whole or not at all, and is listed and readable once `put` returned. Safe to use from several
    threads. Every method may raise `StoreUnreachableError`, `BucketMissingError` or `CredentialsRefusedError`; each
    names what else it raises.
    """

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Write an object, or replace it. Raises StoreFullError, and with `if_absent` ExistsError.

        After a connection that broke half way, ExistsError may be about this very write: compare the bytes.
        """
        ...

    def get(self, key: str) -> bytes:
        """Read an object. Raises MissingError."""
        ...

    def list(self, prefix: str) -> tuple[str, ...]:
        """All keys that begin with `prefix`, sorted."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects in the order given; absence is success."""
        ...
