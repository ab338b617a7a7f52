"""Templates that the operator or the API server does not take: the job has no pods, and says why."""

from __future__ import annotations

import pytest

from cpr_operator.cluster.protocol import Manifest, RefusedError
from cpr_operator.controller import Controller
from cpr_operator.desired.template import Restriction
from simulation.control_plane.workload import spec
from support.house import House

HOST = {"spec": {"hostNetwork": True}}
WORDS = 'pods "job" is forbidden: violates PodSecurity "restricted:latest"'


def restricted(house: House) -> House:
    house.controller = Controller(house.cluster, lambda: house.cluster.now, restriction=Restriction())
    return house


def refuse(house: House, role: str) -> None:
    async def check_pod(manifest: Manifest) -> None:
        if manifest["metadata"]["labels"]["cprjob.io/role"] == role:
            raise RefusedError(WORDS)

    house.cluster.check_pod = check_pod


async def test_a_template_that_grants_more_starts_no_pods_until_it_is_corrected() -> None:
    house = restricted(House(spec(shards__template=HOST)))
    wake = await house.go(3)
    assert (house.status.phase, house.cluster.pods, wake) == ("Pending", {}, 15)
    status, reason, message = house.condition("PodsReady")
    assert (status, reason) == ("False", "TemplateRefused")
    assert message.startswith("spec.shards.template.spec.hostNetwork: is not allowed; ")
    assert [event.message for event in house.cluster.events.values()] == [message]
    house.cluster.set_spec("job", shards={"replicas": 3})
    await house.go(10)
    assert house.status.phase == "Running"


async def test_a_job_that_trains_keeps_the_template_that_it_started_with() -> None:
    """Its operator was one that restricted nothing; what it may not do is judged when it resumes."""
    house = House(spec(shards__template=HOST))
    await house.go(10)
    assert house.status.phase == "Running"
    restricted(house)
    house.cluster.kill("shard", 1)
    await house.go(10)
    assert (house.status.phase, house.status.restarts) == ("Running", 1)
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    house.cluster.set_spec("job", suspend=False)
    await house.go(2)
    assert (house.status.phase, house.condition("PodsReady")[1]) == ("Suspended", "TemplateRefused")


@pytest.mark.parametrize("role", ["trainer", "shard"])
async def test_refused_pod_is_reported_with_the_servers_message_at_start_and_resume(role: str) -> None:
    house = House()
    refuse(house, role)
    wake = await house.go(3)
    assert (house.status.phase, house.status.start_time, house.cluster.pods, wake) == ("Pending", None, {}, 15)
    status, reason, message = house.condition("PodsReady")
    assert (status, reason) == ("False", "CreateRefused")
    assert message.startswith(f"{role}: {WORDS}; ")
    del house.cluster.check_pod
    await house.go(10)
    assert house.status.phase == "Running"
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    refuse(house, role)
    house.cluster.set_spec("job", suspend=False)
    await house.go(2)
    assert (house.status.phase, house.condition("PodsReady")[1]) == ("Suspended", "CreateRefused")
    del house.cluster.check_pod
    await house.go(10)
    assert house.status.phase == "Running"


async def test_a_cleanup_is_not_made_of_a_template_that_was_never_allowed() -> None:
    house = restricted(House(spec(snapshots__deleteWithJob=True)))
    await house.go(10)
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    house.cluster.set_spec("job", trainers={"replicas": 2, "template": HOST})
    house.cluster.user_deletes("job")
    await house.go(3)
    assert house.cluster.jobs == {}
    assert [name for name, _ in house.cluster.history if "cleanup" in name] == []
    (event,) = [event for event in house.cluster.events.values() if event.reason == "SavesLeft"]
    assert "spec.trainers.template.spec.hostNetwork" in event.message
