"""Jobs that this operator cannot read: it says so, leaves their pods alone, and lets them go."""

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.cluster.protocol import RefusedError
from cpr_operator.controller import Controller
from cpr_operator.reconcile.deletion import FINALIZER
from simulation.control_plane.cluster import FakeCluster, When
from simulation.control_plane.run import TICK_S
from simulation.control_plane.workload import spec

KEEPS_NOTHING = {
    "store": {"endpoint": "file:///store", "bucket": "saves"},
    "interval": {"mode": "Fixed", "seconds": 1},
    "deleteWithJob": True,
}
COMMAND = "cprjob snapshots prune file:///store/saves --job 12345678-0000 --all --delete"


async def running() -> tuple[FakeCluster, Controller]:
    """A job that trains, and holds a finalizer."""
    cluster = FakeCluster(10**6)
    cluster.add_job("job", spec(snapshots=KEEPS_NOTHING, data__samples=10**6))
    controller = Controller(cluster, lambda: cluster.now)
    await go(cluster, controller, 12)
    assert cluster.jobs["default", "job"].status["phase"] == "Running"
    assert FINALIZER in cluster.jobs["default", "job"].finalizers
    return cluster, controller


async def go(cluster: FakeCluster, controller: Controller, passes: int) -> None:
    for _ in range(passes):
        cluster.tick(TICK_S)
        await controller.run_pass("default", "job")


def edit(cluster: FakeCluster, **status: Any) -> None:
    """What a newer operator, or somebody with an editor, wrote."""
    job = cluster.jobs["default", "job"]
    cluster.jobs["default", "job"] = replace(job, status={**job.status, **status}, resource_version=cluster._next())


def ready(cluster: FakeCluster) -> dict[str, Any]:
    found = [c for c in cluster.jobs["default", "job"].status["conditions"] if c["type"] == "PodsReady"]
    assert len(found) == 1
    return dict(found[0])


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"phase": "Meditating"}, "status.phase"),
        ({"restarts": -1}, "status.restarts"),
        ({"shards": [{"index": 0, "state": "Cloned"}]}, "status.shards[0].state"),
    ],
)
async def test_a_status_that_is_none_gets_a_condition_and_its_pods_are_left_alone(
    wrong: dict[str, Any], names: str
) -> None:
    cluster, controller = await running()
    before, pods = cluster.jobs["default", "job"].status, {pod.uid for pod in cluster.pods.values()}
    edit(cluster, **wrong)
    await go(cluster, controller, 4)
    condition = ready(cluster)
    assert (condition["status"], condition["reason"]) == ("False", "InvalidStatus")
    assert names in condition["message"]
    assert "the version of the operator that wrote it" in condition["message"]
    assert {pod.uid for pod in cluster.pods.values()} == pods
    after = cluster.jobs["default", "job"].status
    assert {k: v for k, v in after.items() if k != "conditions"} == {
        k: v for k, v in {**before, **wrong}.items() if k != "conditions"
    }
    assert cluster.calls[-2:] == ["write_status", "emit"], "said once"


async def test_a_status_that_is_mended_goes_on_where_it_stood() -> None:
    cluster, controller = await running()
    phase = cluster.jobs["default", "job"].status["phase"]
    edit(cluster, phase="Meditating")
    await go(cluster, controller, 2)
    edit(cluster, phase=phase)
    await go(cluster, controller, 2)
    assert ready(cluster)["reason"] == "AllReady"
    assert cluster.jobs["default", "job"].status["restarts"] == 0


async def test_a_condition_that_is_no_condition_gives_way() -> None:
    cluster, controller = await running()
    edit(cluster, conditions=[{"type": "PodsReady", "status": "Perhaps"}, {"type": "Tomorrow", "status": "True"}])
    await go(cluster, controller, 2)
    assert ready(cluster)["reason"] == "InvalidStatus"
    assert {"type": "Tomorrow", "status": "True"} in cluster.jobs["default", "job"].status["conditions"]


async def test_where_not_even_the_condition_is_taken_an_event_tells() -> None:
    cluster, controller = await running()
    edit(cluster, phase="Meditating")

    def refuse(call: str, _number: int, when: When) -> None:
        if (call, when) == ("write_status", "before"):
            raise RefusedError("status.phase: Unsupported value")

    cluster.fault = refuse
    await go(cluster, controller, 1)
    assert [e.reason for e in cluster.events.values()][-1] == "Invalid"


@pytest.mark.parametrize("readable", ["spec", "status", "neither"])
async def test_a_job_that_cannot_be_read_may_go_and_tells_of_its_saves(readable: str) -> None:
    cluster, controller = await running()
    if readable != "status":
        edit(cluster, phase="Meditating")
    if readable != "spec":
        cluster.set_spec("job", model={})
    cluster.user_deletes("job")
    await go(cluster, controller, 2)
    assert ("default", "job") not in cluster.jobs
    told = [event.message for event in cluster.events.values() if event.reason == "SavesLeft"]
    assert len(told) == 1
    assert COMMAND in told[0]


async def test_a_job_whose_store_cannot_be_read_tells_of_its_saves_as_well() -> None:
    cluster, controller = await running()
    cluster.set_spec("job", snapshots={"store": "somewhere"})
    cluster.user_deletes("job")
    await go(cluster, controller, 2)
    assert ("default", "job") not in cluster.jobs
    told = [event.message for event in cluster.events.values() if event.reason == "SavesLeft"]
    assert len(told) == 1
    assert "under 12345678-0000/" in told[0]
