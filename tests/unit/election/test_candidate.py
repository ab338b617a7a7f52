"""The end of a term: what hangs in requests is cancelled at once, not when the watches have ended."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from kubernetes.aio import client as kubernetes_client

from cpr_operator import candidate
from cpr_operator.candidate import ElectedOperator
from cpr_operator.configuration import Configuration
from cpr_operator.metrics import Metrics
from cpr_operator.queue import ReconcileQueue

JOBS = 200


def passes() -> int:
    """The number of jobs in the queue."""
    return sum(task.get_name().startswith("reconcile ") for task in asyncio.all_tasks())


async def test_passes_that_hang_end_before_the_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ReconcileQueue] = []
    hang, left = threading.Event(), list[int]()

    class SlowWatches:
        """Sees many jobs, and ends only when no pass is left."""

        ready = True

        def __init__(self, *_: object) -> None:
            self._stopped = asyncio.Event()

        def stop(self) -> None:
            self._stopped.set()

        async def run(self) -> None:
            for number in range(JOBS):
                made[0].wake("n", f"job-{number}")
            while passes() < JOBS:  # noqa: ASYNC110 -- there is no event to wait for
                await asyncio.sleep(0)
            left.append(passes())
            hang.set()
            await self._stopped.wait()
            made[0].wake("n", "late")
            while passes():  # noqa: ASYNC110 -- there is no event to wait for
                await asyncio.sleep(0)
            left.append(passes())

    class NotedQueue(ReconcileQueue):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

    with socket.create_server(("127.0.0.1", 0), backlog=JOBS) as server:

        async def load() -> kubernetes_client.Configuration:
            return kubernetes_client.Configuration(host=f"http://127.0.0.1:{server.getsockname()[1]}")

        monkeypatch.setattr(candidate, "load_configuration", load)
        monkeypatch.setattr(candidate, "Watches", SlowWatches)
        monkeypatch.setattr(candidate, "ReconcileQueue", NotedQueue)
        led = ElectedOperator(Configuration(), Metrics(), lambda: None)
        work = led.start()
        assert await asyncio.to_thread(hang.wait)
        led.stop()
        await work
    assert left == [JOBS, 0]
