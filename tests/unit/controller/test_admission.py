"""Templates that the operator or the API server refuses: the job has no pods, and a condition with the reason."""

from __future__ import annotations

import pytest

from cpr_operator.cluster.protocol import Manifest, RefusedError
from cpr_operator.controller.controller import Controller
from cpr_operator.desired.template import Restriction
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

HOST = {"spec": {"hostNetwork": True}}
REFUSAL = 'pods "job" is forbidden: violates PodSecurity "restricted:latest"'


def restricted(harness: ControllerHarness) -> ControllerHarness:
    harness.controller = Controller(harness.cluster, lambda: harness.cluster.now, restriction=Restriction())
    return harness


def refuse(harness: ControllerHarness, role: str) -> None:
    async def check_pod(manifest: Manifest) -> None:
        if manifest["metadata"]["labels"]["cprjob.io/role"] == role:
            raise RefusedError(REFUSAL)

    harness.cluster.check_pod = check_pod


async def test_a_template_that_grants_more_starts_no_pods_until_it_is_corrected() -> None:
    harness = restricted(ControllerHarness(spec(shards__template=HOST)))
    wake = await harness.go(3)
    assert (harness.status.phase, harness.cluster.pods, wake) == ("Pending", {}, 15)
    status, reason, message = harness.condition("PodsReady")
    assert (status, reason) == ("False", "TemplateRefused")
    assert message.startswith("spec.shards.template.spec.hostNetwork: is not allowed; ")
    assert [event.message for event in harness.cluster.events.values()] == [message]
    harness.cluster.set_spec("job", shards={"replicas": 3})
    await harness.go(10)
    assert harness.status.phase == "Running"


async def test_a_job_that_trains_keeps_the_template_that_it_started_with() -> None:
    """Its operator was one that restricted nothing; what it may not do is judged when it resumes."""
    harness = ControllerHarness(spec(shards__template=HOST))
    await harness.go(10)
    assert harness.status.phase == "Running"
    restricted(harness)
    harness.cluster.kill("shard", 1)
    await harness.go(10)
    assert (harness.status.phase, harness.status.restarts) == ("Running", 1)
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(2)
    assert (harness.status.phase, harness.condition("PodsReady")[1]) == ("Suspended", "TemplateRefused")


@pytest.mark.parametrize("role", ["trainer", "shard"])
async def test_refused_pod_is_reported_with_the_servers_message_at_start_and_resume(role: str) -> None:
    harness = ControllerHarness()
    refuse(harness, role)
    wake = await harness.go(3)
    assert (harness.status.phase, harness.status.start_time, harness.cluster.pods, wake) == ("Pending", None, {}, 15)
    status, reason, message = harness.condition("PodsReady")
    assert (status, reason) == ("False", "CreateRefused")
    assert message.startswith(f"{role}: {REFUSAL}; ")
    del harness.cluster.check_pod
    await harness.go(10)
    assert harness.status.phase == "Running"
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    refuse(harness, role)
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(2)
    assert (harness.status.phase, harness.condition("PodsReady")[1]) == ("Suspended", "CreateRefused")
    del harness.cluster.check_pod
    await harness.go(10)
    assert harness.status.phase == "Running"


async def test_a_cleanup_is_not_made_of_a_template_that_was_never_allowed() -> None:
    harness = restricted(ControllerHarness(spec(snapshots__deleteWithJob=True)))
    await harness.go(10)
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    harness.cluster.set_spec("job", trainers={"replicas": 2, "template": HOST})
    harness.cluster.user_deletes("job")
    await harness.go(3)
    assert harness.cluster.jobs == {}
    assert [name for name, _ in harness.cluster.history if "cleanup" in name] == []
    (event,) = [event for event in harness.cluster.events.values() if event.reason == "SavesLeft"]
    assert "spec.trainers.template.spec.hostNetwork" in event.message
