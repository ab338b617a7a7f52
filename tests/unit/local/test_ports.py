"""Ports of local mode: several runs on one machine never get the same."""

from __future__ import annotations

import os
import random
import socket
from contextlib import closing

from cpr_operator.cluster.local.pod_folder import PortBlocks

#: Of these tests alone: whoever else draws from the same seed may hold a block, and give it back meanwhile.
SEED = int.from_bytes(os.urandom(8))


def first_block(seed: int) -> int:
    with closing(PortBlocks(random.Random(seed))) as ports:
        return ports.take()


def test_a_block_belongs_to_one_run_though_nobody_listens_on_it_yet() -> None:
    with closing(PortBlocks(random.Random(SEED))) as ports:
        taken = ports.take()
        assert abs(first_block(SEED) - taken) >= 3
        ports.give_back(taken)
        assert first_block(SEED) == taken


def test_what_was_taken_is_free_for_servers() -> None:
    with closing(PortBlocks(random.Random(SEED))) as ports, socket.create_server(("127.0.0.1", ports.take())) as server:
        assert server.fileno() > 0
