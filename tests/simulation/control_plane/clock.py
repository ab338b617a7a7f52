"""An event loop with a clock that advances only when all tasks wait: hours take no time."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


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

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call it here and now: the loop would move the time on while a thread computes."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- the caller that awaits it raises it
            done.set_exception(error)
        return done


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test, and none of its fixtures, in virtual time."""

    @functools.wraps(test)
    def plain(*arguments: P.args, **options: P.kwargs) -> None:
        run(test(*arguments, **options))

    return plain


def now() -> float:
    """The running loop's time in seconds."""
    return asyncio.get_running_loop().time()
