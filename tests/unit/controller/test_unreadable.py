"""Jobs that this operator cannot read: it reports them, leaves their pods alone, and lets them be deleted."""

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.cluster.protocol import RefusedError
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile.deletion import FINALIZER
from simulation.control_plane.cluster import When
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

KEEPS_NOTHING = {
    "store": {"endpoint": "file:///store", "bucket": "saves"},
    "interval": {"mode": "Fixed", "seconds": 1},
    "deleteWithJob": True,
}
COMMAND = "cprjob snapshots prune file:///store/saves --job 12345678-0000 --all --delete"


class Held(ControllerHarness):
    """A job that trains, and holds a finalizer."""

    async def begin(self) -> None:
        await self.go(12)
        assert self.status.phase == "Running"
        assert FINALIZER in self.job.finalizers

    @property
    def job(self) -> JobView:
        return self.cluster.jobs["default", "job"]

    def edit(self, **status: Any) -> None:
        """Store a status of a newer operator, or of an editor."""
        job = replace(self.job, status={**self.job.status, **status}, resource_version=self.cluster._next())
        self.cluster.jobs["default", "job"] = job

    def ready(self) -> dict[str, Any]:
        (found,) = [c for c in self.job.status["conditions"] if c["type"] == "PodsReady"]
        return dict(found)

    def messages(self, reason: str) -> list[str]:
        return [event.message for event in self.cluster.events.values() if event.reason == reason]


@pytest.fixture
async def harness() -> Held:
    made = Held(spec(snapshots=KEEPS_NOTHING, data__samples=10**6), total=10**6)
    await made.begin()
    return made


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"phase": "Meditating"}, "status.phase"),
        ({"restarts": -1}, "status.restarts"),
        ({"shards": [{"index": 0, "state": "Cloned"}]}, "status.shards[0].state"),
    ],
)
async def test_an_invalid_status_gets_a_condition_its_pods_are_left_alone_and_a_mended_one_continues(
    harness: Held, wrong: dict[str, Any], names: str
) -> None:
    before, pods = harness.job.status, {pod.uid for pod in harness.cluster.pods.values()}
    harness.edit(**wrong)
    await harness.go(4)
    condition = harness.ready()
    assert (condition["status"], condition["reason"]) == ("False", "InvalidStatus")
    assert names in condition["message"]
    assert "the version of the operator that wrote it" in condition["message"]
    assert {pod.uid for pod in harness.cluster.pods.values()} == pods
    after = harness.job.status
    assert {k: v for k, v in after.items() if k != "conditions"} == {
        k: v for k, v in {**before, **wrong}.items() if k != "conditions"
    }
    assert harness.cluster.calls[-2:] == ["write_status", "emit"], "reported once"
    harness.edit(**{name: before.get(name, 0) for name in wrong})
    await harness.go(2)
    assert (harness.ready()["reason"], harness.status.restarts) == ("AllReady", 0)


@pytest.mark.parametrize("ca", ["gone", "-----BEGIN CERTIFICATE-----\nZ29uZQ==\n-----END CERTIFICATE-----\n", "é"])
async def test_ca_without_a_certificate_is_reported(harness: Held, ca: str) -> None:
    harness.edit(runtime={**harness.job.status["runtime"], "ca": ca})
    await harness.go(2)
    assert harness.ready()["reason"] == "InvalidStatus"
    assert "status.runtime.ca: " in harness.ready()["message"]


async def test_invalid_condition_is_replaced(harness: Held) -> None:
    later = {"type": "Tomorrow", "status": "True"}
    harness.edit(conditions=[{"type": "PodsReady", "status": "Perhaps"}, later])
    await harness.go(2)
    assert harness.ready()["reason"] == "InvalidStatus"
    assert later in harness.job.status["conditions"]


async def test_event_reports_an_unreadable_job_if_the_condition_is_refused(harness: Held) -> None:
    harness.edit(phase="Meditating")

    def refuse(call: str, _number: int, when: When) -> None:
        if (call, when) == ("write_status", "before"):
            raise RefusedError("status.phase: Unsupported value")

    harness.cluster.fault = refuse
    await harness.go(1)
    assert [e.reason for e in harness.cluster.events.values()][-1] == "Invalid"


@pytest.mark.parametrize(
    ("phase", "changes", "text"),
    [
        ("Meditating", {}, COMMAND),
        ("Running", {"model": {}}, COMMAND),
        ("Meditating", {"model": {}}, COMMAND),
        ("Running", {"snapshots": {"store": "somewhere"}}, "under 12345678-0000/"),
    ],
    ids=["spec", "status", "neither", "not even its store"],
)
async def test_unreadable_job_can_be_deleted_with_an_event_about_its_saves(
    harness: Held, phase: str, changes: dict[str, Any], text: str
) -> None:
    harness.edit(phase=phase)
    if changes:
        harness.cluster.set_spec("job", **changes)
    harness.cluster.user_deletes("job")
    await harness.go(2)
    assert ("default", "job") not in harness.cluster.jobs
    (message,) = harness.messages("SavesLeft")
    assert text in message
