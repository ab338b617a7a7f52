"""The operator as a process against a real API server, in one namespace."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cpr_operator.cluster.local.pod_folder import PortBlocks
from support.benches import NAMESPACE

#: Long enough for a machine that also runs a cluster.
WITHIN_S, ANSWER_S = 120.0, 60.0


@dataclass(frozen=True)
class Operator:
    """A running operator and the address of its HTTP port."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def role(self) -> str:
        """leader or standby; empty if it does not answer."""
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False, timeout=ANSWER_S).text.strip()
        except httpx.TransportError:
            return ""

    def metrics(self) -> str:
        """Return its exposition for Prometheus."""
        return httpx.get(f"{self.url}/metrics", trust_env=False, timeout=ANSWER_S).text


@contextmanager
def running_operator(kubeconfig: Path, log: Path, lease: str, **settings: str) -> Iterator[Operator]:
    """Start it and wait until it leads or stands by; it is killed in the end. `settings` are further variables."""
    with closing(PortBlocks(random.Random())) as ports, log.open("wb") as output:
        port = ports.take()
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "CPR_OPERATOR_NAMESPACES": NAMESPACE,
            "CPR_OPERATOR_HTTP_PORT": str(port),
            "CPR_OPERATOR_LEASE": f"{NAMESPACE}/{lease}",
            **settings,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "cpr_operator"], env=environment, stdout=output, stderr=output
        )
        running = Operator(process, f"http://127.0.0.1:{port}")
        try:
            until(lambda: running.role in {"leader", "standby"}, log)
            yield running
        finally:
            process.kill()
            process.wait()


def until(found: Callable[[], Any], log: Path) -> Any:
    """Wait for what `found` returns; fail with the end of the operator's log if it stays false."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.1)
    pytest.fail(f"it did not come true; the operator's log: {log.read_text()[-3000:]}")
