"""Second attempts at operations that a network or a store drops now and then; longer outages are the caller's."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from itertools import islice
from typing import ParamSpec, TypeVar

from cpr_trainer.runtime import backoff, retry
from cpr_trainer.store.protocol import StoreUnreachableError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_RETRIES = 2
_FIRST_S = 0.2
#: A longer pause that the store asks for is the caller's to make.
_LONGEST_S = 2.0


def persistent(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate an operation that may be repeated: `persist` runs it."""

    @functools.wraps(operation)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return persist(lambda: operation(*args, **kwargs), random.Random(), time.sleep)

    return wrapper


def persist(operation: Callable[[], Result], rng: random.Random, sleep: Callable[[float], None]) -> Result:
    """Return what `operation` returns; repeat it twice at most, after a moment, if it raises StoreUnreachableError."""

    def pause(error: StoreUnreachableError, delay_s: float) -> None:
        if error.retry_after_s > _LONGEST_S:
            raise error
        sleep(max(delay_s, error.retry_after_s))

    delays_s = islice(backoff(rng, first_s=_FIRST_S), _RETRIES)
    return retry(operation, StoreUnreachableError, delays_s, pause)
