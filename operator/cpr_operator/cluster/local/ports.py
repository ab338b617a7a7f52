"""Blocks of free ports on the loopback interface."""

from __future__ import annotations

import random
import socket

from cpr_operator.cluster.protocol import UnavailableError

LOOPBACK = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections.
FIRST, LAST = 20000, 32000
PORTS_PER_BLOCK = 4
ATTEMPTS = 200


class PortBlocks:
    """Blocks of `PORTS_PER_BLOCK` consecutive ports on which nobody listens.

    A process listens some time after it is given its ports. Until `give_back`, no other `PortBlocks` on this machine,
    of whatever process, gives the same block: a UDP socket on its first port stands for it, and leaves TCP alone.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: dict[int, socket.socket] = {}

    def take(self) -> int:
        """The first port of a block. Raises `UnavailableError` if none is found."""
        for _ in range(ATTEMPTS):
            base = self._rng.randrange(FIRST, LAST, PORTS_PER_BLOCK)
            if (held := _bound(base, socket.SOCK_DGRAM)) is None:
                continue
            if all(map(_is_free, range(base, base + PORTS_PER_BLOCK))):
                self._held[base] = held
                return base
            held.close()
        raise UnavailableError(f"no {PORTS_PER_BLOCK} free ports in a row between {FIRST} and {LAST}")

    def give_back(self, base: int) -> None:
        """Let others have the block."""
        self._held.pop(base).close()

    def close(self) -> None:
        """Give all blocks back."""
        for base in tuple(self._held):
            self.give_back(base)


def _is_free(port: int) -> bool:
    probe = _bound(port, socket.SOCK_STREAM)
    if probe is None:
        return False
    probe.close()
    return True


def _bound(port: int, kind: socket.SocketKind) -> socket.socket | None:
    made = socket.socket(type=kind)
    try:
        made.bind((LOOPBACK, port))
    except OSError:
        made.close()
        return None
    return made
