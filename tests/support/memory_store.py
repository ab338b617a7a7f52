"""A store in memory, for tests of what stands on stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from cpr_trainer.store import ExistsError, MissingError


class MemoryStore:
    """Implements `Store`. `before_put` is called with each key and may raise: a fault, or a death, of one's choice."""

    def __init__(self, before_put: Callable[[str], None] = lambda _key: None) -> None:
        self.objects: dict[str, bytes] = {}
        self.before_put = before_put
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self.before_put(key)
        with self._lock:
            if if_absent and key in self.objects:
                raise ExistsError(key)
            self.objects[key] = bytes(data)

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise MissingError(key) from None

    def list(self, prefix: str) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(key for key in self.objects if key.startswith(prefix)))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)
