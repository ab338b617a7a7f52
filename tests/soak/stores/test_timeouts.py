"""Servers that are slow or silent, by the real clock."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, StoreUnreachableError, open_store
from support.fault_proxy import FaultProxy, Slow, Stall
from support.s3_servers import write_credentials
from support.store_faults import ATTEMPTS, Operation, Proxied, read, write

pytestmark = pytest.mark.store


class TestUnresponsive(Proxied):
    @pytest.mark.parametrize("idle_timeout_s", [2.0])
    @pytest.mark.parametrize("operation", [write, read])
    def test_unresponsive_server_is_given_up(self, store: Store, proxy: FaultProxy, operation: Operation) -> None:
        proxy.inject(*[Stall()] * ATTEMPTS)
        with pytest.raises(StoreUnreachableError, match="timed out"):
            operation(store)

    @pytest.mark.parametrize("idle_timeout_s", [9.0])
    def test_slow_server_is_waited_for(self, store: Store, proxy: FaultProxy, idle_timeout_s: float) -> None:
        data = bytearray(16 << 20)
        slow = Slow(len(data) / (1.33 * idle_timeout_s))  # takes longer than a server may be silent
        proxy.inject(slow, slow)
        store.put("job/slow", data)
        assert store.get_into("job/slow", [memoryview(data)]).size_bytes == len(data)
        assert proxy.seen == 2


@pytest.mark.timeout(60)
def test_network_that_drops_packets_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as listener:  # its queue is full, so a connection is never answered
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        with socket.create_connection(address):
            spec = StoreSpec(f"http://127.0.0.1:{address[1]}", "us-east-1", "bucket", "")
            store = open_store(spec, write_credentials(tmp_path, "a", "b"), None)
            with pytest.raises(StoreUnreachableError):
                store.get("job/a")
