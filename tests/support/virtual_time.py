"""An event loop whose time passes only when all tasks wait: hours take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Instead of waiting, moves the time on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("all tasks wait, and for nothing that time brings")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its `time()` starts at 0 seconds."""

    def __init__(self) -> None:
        self._moved = _Selector()
        super().__init__(self._moved)

    def time(self) -> float:
        return self._moved.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
