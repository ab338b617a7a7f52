"""A store in memory, for tests of code on top of stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from cpr_trainer.store import Buffer, Entry, ExistsError, MissingError, Received, Throttle, checksum
from cpr_trainer.store.transfers import flat, size_of


class MemoryStore:
    """Implements `Store`. `before_put` is called with each key and may raise: a fault, or a death, of one's choice."""

    def __init__(self, before_put: Callable[[str], None] = lambda _key: None) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_s: dict[str, float] = {}
        self.before_put = before_put
        self._lock = threading.Lock()

    def put(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        if_absent: bool = False,
        throttle: Throttle | None = None,
    ) -> int:
        self.before_put(key)
        views = flat(data)
        if throttle:
            throttle.wait(size_of(views))
        with self._lock:
            if if_absent and key in self.objects:
                raise ExistsError(key)
            self.objects[key] = b"".join(views)
            self.modified_s[key] = time.time()
        return checksum(self.objects[key])

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise MissingError(key) from None

    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        data = memoryview(self.get(key))
        views = flat(buffers)
        left = data
        for view in views:
            view[: len(left)] = left[: len(view)]
            left = left[len(view) :]
        return Received(len(data), checksum(data[: size_of(views)]))

    def list(self, prefix: str) -> tuple[Entry, ...]:
        with self._lock:
            return tuple(
                Entry(key, len(self.objects[key]), self.modified_s.get(key, 0.0))
                for key in sorted(self.objects)
                if key.startswith(prefix)
            )

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def probe(self, folder: str) -> None:
        """It has all abilities."""
