"""A large job's pass decides beside the event loop: what other jobs wait for goes on meanwhile."""

import asyncio
import threading

import pytest

from cpr_operator import controller
from cpr_operator.controller import Controller
from cpr_operator.reconcile import Outcome, PassInput, reconcile
from support.driver import spec
from support.fake_cluster import FakeCluster

#: Far longer than the event loop needs for a turn; nobody waits for it if all is well.
PATIENCE_S = 20.0


async def test_the_event_loop_goes_on_while_a_pass_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    began, others_went_on = threading.Event(), threading.Event()
    seen = []

    def slow(world: PassInput) -> Outcome:
        began.set()
        seen.append(others_went_on.wait(PATIENCE_S))
        return reconcile(world)

    async def another_job() -> None:
        await asyncio.to_thread(began.wait, PATIENCE_S)
        others_went_on.set()

    monkeypatch.setattr(controller, "reconcile", slow)
    cluster = FakeCluster(2000)
    cluster.add_job("job", spec(shards__replicas=controller.FEW_PODS))
    large = Controller(cluster, lambda: cluster.now)
    await asyncio.gather(large.run_pass("default", "job"), another_job())
    assert seen == [True]
    assert cluster.statuses[-1]["phase"] == "Starting"
