"""Retries: the delays between attempts, and the loop that repeats a call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")
Error = TypeVar("Error", bound=Exception)


def backoff(rng: random.Random, *, first_s: float = 0.1, cap_s: float = 5.0) -> Iterator[float]:
    """Yield delays in seconds without end: exponential with full jitter, each uniform in [0, min(cap, first * 2^n)].

    Full jitter spreads the attempts of many processes that failed at the same moment. Use one iterator for one outage,
    and a new one after a success.
    """
    ceiling_s = first_s
    while True:
        yield rng.uniform(0.0, ceiling_s)
        ceiling_s = min(cap_s, 2 * ceiling_s)


def retry(
    call: Callable[[], Result], on: type[Error], delays_s: Iterator[float], pause: Callable[[Error, float], None]
) -> Result:
    """Return the result of `call`, repeated while it raises an error of the type `on`.

    `pause` waits for the next of `delays_s`; it ends the retries by raising, for example the error itself. The end of
    `delays_s` ends them, too: the last error is raised.
    """
    while True:
        try:
            return call()
        except on as error:
            delay_s = next(delays_s, None)
            if delay_s is None:
                raise
            pause(error, delay_s)
