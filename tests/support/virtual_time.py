"""An event loop whose clock jumps to the next timer instead of waiting for it. It is for timers alone, not for I/O."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Waits for nothing, and adds up how long it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left to happen"
        self.now += max(timeout, 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a loop of its own, whose time begins at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main())


def now() -> float:
    """The loop's time in seconds."""
    return asyncio.get_running_loop().time()
