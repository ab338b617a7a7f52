"""The controller's manners: what it does about a spec, a cluster or a job that is not as it should be."""

from collections.abc import Mapping
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.reports import Recorded
from cpr_contract.roster import AnchorRef, unseal
from cpr_operator.api import crd
from cpr_operator.cluster.protocol import UnavailableError
from cpr_operator.cluster.views import PodView
from cpr_operator.controller import Controller
from cpr_operator.controller.reader import InstalledCrd
from cpr_operator.reconcile import AdmissionGate
from simulation.control_plane.workload import spec
from support.house import House


async def test_status_is_written_before_anything_is_created() -> None:
    house = House()
    await house.go()
    assert house.cluster.calls[0] == "write_status"
    assert house.cluster.calls.index("create_secret") < house.cluster.calls.index("create_pod")


async def test_a_pass_over_a_job_that_is_as_it_should_be_changes_nothing() -> None:
    house = House()
    await house.go(8)
    calls = len(house.cluster.calls)
    for _ in range(3):
        await house.controller.run_pass("default", "job")
    assert house.status.phase == "Running"
    assert house.cluster.calls[calls:] == []


async def test_progress_alone_is_written_seldom() -> None:
    total = 200_000
    job = spec(snapshots__interval={"mode": "Fixed", "seconds": 3600}, data__samples=total)
    house = House(job, total=total)
    await house.go(8)
    calls = len(house.cluster.calls)
    await house.go(4)
    assert house.cluster.calls[calls:] == []
    house.cluster.now += 20
    await house.go()
    assert house.cluster.calls[calls:] == ["write_status"]


def told(house: House) -> Recorded:
    """What the leader was told when it was asked last."""
    (secret,), pod = house.cluster.secrets.values(), house.status.trainers[0].pod
    text = unseal(secret["stringData"][env.KEY_NAME].encode(), pod, house.cluster.recorded[pod])
    assert text is not None
    return from_json(Recorded, text)


async def test_leader_gets_the_recorded_state_once_the_status_is_written() -> None:
    total = 200_000
    house = House(spec(snapshots__interval={"mode": "Fixed", "seconds": 3600}, data__samples=total), total=total)
    await house.go(8)
    generation = house.status.counters.generation
    assert told(house) == Recorded(generation, "", 0)
    (plane,) = house.cluster.planes.values()
    plane.store.anchors.append(AnchorRef("job/7", "", generation, 7, 70))
    await house.go()
    assert told(house).anchor == "", "its answer was not written yet"
    assert house.status.anchors[-1].key == "job/7"
    await house.go()
    assert told(house).anchor == "job/7"


async def test_leader_that_runs_when_the_job_succeeds_gets_the_recorded_state() -> None:
    house = House()
    while house.status.phase != "Succeeded":
        await house.go()
    house.cluster.recorded.clear()
    await house.go()
    assert house.cluster.recorded == {}
    house.cluster.pods[house.status.trainers[0].pod].phase = "Running"
    assert await house.go() == 1.0, "the next pass is soon"
    assert told(house).anchor == house.status.anchors[-1].key


@pytest.mark.parametrize(
    ("wrong", "mended", "says"),
    [
        ({"model__topMlp": [8, 3]}, {"model": spec()["model"]}, "topMlp"),
        (
            {"trainers__template": {"spec": {"volumes": [None]}}},
            {"trainers": {"replicas": 2}},
            "spec.trainers.template.spec.volumes[0]: must be a map",
        ),
    ],
)
async def test_a_wrong_spec_gets_a_condition_and_no_pods_until_it_is_mended(
    wrong: dict[str, Any], mended: dict[str, Any], says: str
) -> None:
    house = House(spec(**wrong))
    await house.go(3)
    status, reason, message = house.condition("PodsReady")
    assert (status, reason) == ("False", "InvalidSpec")
    assert says in message
    assert house.cluster.calls == ["write_status", "emit"]
    house.cluster.set_spec("job", **mended)
    await house.go(8)
    assert house.status.phase == "Running"


async def test_new_jobs_do_not_start_under_an_outdated_schema_and_a_running_one_continues() -> None:
    house = House(admission_gate=AdmissionGate("True", "SchemaDiffers", "the CRD is old: upgrade it"))
    await house.go(3)
    assert house.condition("CRDOutdated") == ("True", "SchemaDiffers", "the CRD is old: upgrade it")
    assert house.cluster.pods == {}
    house.gate = None
    await house.go(8)
    assert (house.status.phase, house.condition("CRDOutdated")[0]) == ("Running", "False")
    house.gate = AdmissionGate("True", "SchemaDiffers", "the CRD is old again")
    await house.go(60)
    assert house.status.phase == "Succeeded"


async def test_unreadable_crd_delays_a_job_only_until_it_is_read() -> None:
    """The API server fails at the operator's start, and answers a little later."""
    house = House()
    now = 0.0
    answers: list[UnavailableError | dict[str, str]]
    answers = [UnavailableError("etcd has no leader"), {crd.HASH_ANNOTATION: crd.schema_hash()}]

    async def read() -> Mapping[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    installed = InstalledCrd(read, lambda: now)
    house.controller = Controller(house.cluster, lambda: house.cluster.now, admission_gate=installed.admission_gate)
    await house.go(3)
    state, reason, message = house.condition("CRDOutdated")
    assert (state, reason) == ("Unknown", "Unknown")
    assert "etcd has no leader" in message
    assert len(answers) == 1, "it is not asked again at once"
    now = 60.0
    await house.go(8)
    assert (house.status.phase, house.condition("CRDOutdated")[0]) == ("Running", "False")


async def test_a_job_created_suspended_starts_no_pods() -> None:
    house = House(spec(suspend=True))
    await house.go(3)
    assert (house.status.phase, house.cluster.pods) == ("Suspended", {})
    house.cluster.set_spec("job", suspend=False, shards={"replicas": 2})
    await house.go(8)
    assert (house.status.phase, len(house.status.shards), house.status.counters.generation) == ("Running", 2, 1)


async def test_early_change_of_the_number_of_shards_waits_with_a_condition() -> None:
    """An API server does not let it happen; an old CRD would."""
    house = House()
    await house.go(3)
    house.cluster.set_spec("job", shards={"replicas": 2})
    await house.go(1)
    state, reason, message = house.condition("Suspended")
    assert (state, reason) == ("False", "ShardsDiffer")
    assert "spec.shards.replicas" in message
    assert "set spec.suspend to true" in message
    assert len(house.status.shards) == 3
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    house.cluster.set_spec("job", suspend=False)
    await house.go(1)
    assert (len(house.status.shards), house.condition("Suspended")[1]) == (2, "Active")


async def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    house = House()
    job = house.cluster.jobs["default", "job"]
    house.cluster.jobs["default", "job"] = type(job)(**{f: getattr(job, f) for f in job.__slots__} | {"deleting": True})
    await house.go(2)
    assert house.cluster.calls == []


@pytest.mark.parametrize("answer", [None, b"<html>"])
async def test_missing_and_invalid_answers_are_no_evidence(answer: bytes | None) -> None:
    house = House()
    await house.go(8)
    before = house.status.shards, house.status.trainers

    async def fetch(pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "") -> bytes | None:
        return answer

    house.cluster.fetch_report = fetch
    await house.go(4)
    assert house.condition("ReportsAvailable")[:2] == ("False", "NoAnswer")
    assert (house.status.shards, house.status.trainers, house.status.restarts) == (*before, 0)


async def test_finished_job_stays_finished_and_is_deleted_after_its_ttl() -> None:
    house = House(spec(ttlSecondsAfterFinished=100))
    await house.go(60)
    assert house.status.phase == "Succeeded"
    before = house.status
    house.cluster.set_spec("job", suspend=True)
    await house.go(2)
    assert house.status == before
    house.cluster.now += 100
    assert house.gone == []
    await house.go()
    assert house.cluster.jobs == {}
    assert await house.go() is None
    assert house.gone[-1:] == ["job"], "whatever the operator keeps of it is forgotten"


async def test_pods_of_an_earlier_job_of_the_name_are_not_touched() -> None:
    house = House()
    await house.go(8)
    old = {name: pod.uid for name, pod in house.cluster.pods.items()}
    job = house.cluster.jobs.pop(("default", "job"))
    house.cluster.add_job("job", job.spec, uid="abcdef00-1111")
    await house.go(8)
    assert all(house.cluster.pods[name].deleting_until is None for name in old)
    assert len(house.cluster.pods) == 2 * len(old)


async def test_the_log_of_the_last_incarnation_is_kept_and_older_ones_go() -> None:
    house = House()
    await house.go(8)
    for _ in range(2):
        house.cluster.kill("shard", 1)
        await house.go(12)
    names = sorted(name for name in house.cluster.pods if "shard-1" in name)
    assert names == ["job-12345-shard-1-2", "job-12345-shard-1-3"]


async def test_rosters_are_written_only_to_concerned_members() -> None:
    house = House()
    await house.go(8)
    before = {name: pod.view().roster_version for name, pod in house.cluster.pods.items()}
    house.cluster.kill("shard", 1)
    await house.go(4)
    told = {
        n for n, p in house.cluster.pods.items() if before.get(n, p.view().roster_version) != p.view().roster_version
    }
    assert told == {"job-12345-trainer-0-1", "job-12345-trainer-1-1"}
