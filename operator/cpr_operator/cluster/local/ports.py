"""Blocks of free ports on the loopback interface."""

from __future__ import annotations

import random
import socket

from cpr_operator.cluster.protocol import UnavailableError

LOOPBACK = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections.
FIRST, LAST = 20000, 32000
ATTEMPTS = 200


def free_block(length: int, taken: set[int], rng: random.Random) -> int:
    """The first of `length` consecutive ports that nobody listens on and none of which is in `taken`.

    Raises `UnavailableError` if none is found.
    """
    for _ in range(ATTEMPTS):
        base = rng.randrange(FIRST, LAST - length)
        block = range(base, base + length)
        if taken.isdisjoint(block) and all(map(_is_free, block)):
            return base
    raise UnavailableError(f"no {length} free ports in a row between {FIRST} and {LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
