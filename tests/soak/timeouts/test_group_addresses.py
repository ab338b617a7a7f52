"""While a group is built, no process without the key can send its members an address (probed for seconds)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from cpr_contract.codec import to_json
from cpr_trainer.trainer.allreduce.group import NO_STATE, Hello
from cpr_trainer.trainer.allreduce.transport import Frame, Kind
from support.control_group import HOST, Member, roster_of
from support.wait_limit import poll_interrupts


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def _listening_ports() -> set[int]:
    """The ports on which this process listens. A TCPStore of torch listens by IPv6, for both versions."""
    inodes = {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    tables = (Path("/proc/self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table]
    return {int(cell[1].split(":")[1], 16) for cell in lines if cell[3] == "0A" and f"socket:[{cell[9]}]" in inodes}


def _is_open_store(port: int) -> bool:
    """Return whether an unauthenticated client can send a group's members an address there."""
    try:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]  # public, though not marked as exported
            HOST, port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False, use_libuv=False
        )
        store.set("address", "mine")
        return bool(store.get("address") == b"mine")
    except RuntimeError:
        return False


def test_unauthenticated_client_sends_no_address_to_a_group(threads: ThreadPoolExecutor) -> None:
    leader, friend = Member(0), Member(1)
    before = _listening_ports()
    over = threading.Event()

    def go_on() -> None:
        poll_interrupts()
        if over.is_set():
            raise InterruptedError

    led = threads.submit(
        lambda: leader.make_group(roster_of([leader, friend], 1)).join(leader.replica, lambda: None, go_on)
    )
    channel = friend.listener.connect_to(leader.peer)
    channel.send(Frame(Kind.HELLO, 1, payload=to_json(Hello(1, 1, 1, 1, NO_STATE)).encode()))
    try:
        while (
            (received := friend.listener.inbox.take(1.0)) is None
            or not received.frame
            or received.frame.kind is not Kind.FORM
        ):
            poll_interrupts()
        probes: dict[int, Future[bool]] = {}
        end_s = time.monotonic() + 4
        while time.monotonic() < end_s:  # the group is being built
            # Groups of earlier tests may still listen, without answers.
            for port in _listening_ports() - before - probes.keys():
                probes[port] = threads.submit(_is_open_store, port)
            time.sleep(0.05)
        assert probes
        # A port without a store does not answer, and the probe ends with the group.
        assert not any(probe.result() for probe in probes.values() if probe.done())
    finally:
        over.set()
        assert led.exception(60)
        for member in (leader, friend):
            member.listener.close()
