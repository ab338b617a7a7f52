"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Iterator


def backoff(rng: random.Random, *, first_s: float = 0.1, cap_s: float = 5.0) -> Iterator[float]:
    """Yield delays in seconds without end: exponential with full jitter, each uniform in [0, min(cap, first * 2^n)].

    Full jitter spreads the attempts of many processes that failed at the same moment. One iterator is one outage: make
    a new one after a success.
    """
    ceiling_s = first_s
    while True:
        yield rng.uniform(0.0, ceiling_s)
        ceiling_s = min(cap_s, 2 * ceiling_s)
