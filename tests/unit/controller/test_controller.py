"""The controller's manners: what it does about a spec, a cluster or a job that is not as it should be."""

from collections.abc import Mapping
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.reports import Recorded
from cpr_contract.roster import AnchorRef, unseal
from cpr_operator.api import crd
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.protocol import UnavailableError
from cpr_operator.cluster.views import PodView
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.job_reader import InstalledCrd
from cpr_operator.reconcile import AdmissionGate
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness


async def test_status_is_written_before_anything_is_created() -> None:
    harness = ControllerHarness()
    await harness.go()
    assert harness.cluster.calls[0] == "write_status"
    assert harness.cluster.calls.index("create_secret") < harness.cluster.calls.index("create_pod")


async def test_a_pass_over_a_job_that_is_as_it_should_be_changes_nothing() -> None:
    harness = ControllerHarness()
    await harness.go(8)
    calls = len(harness.cluster.calls)
    for _ in range(3):
        await harness.controller.run_pass("default", "job")
    assert harness.status.phase == "Running"
    assert harness.cluster.calls[calls:] == []


async def test_progress_alone_is_written_seldom() -> None:
    total = 200_000
    job = spec(snapshots__interval={"mode": "Fixed", "seconds": 3600}, data__samples=total)
    harness = ControllerHarness(job, total=total)
    await harness.go(8)
    calls = len(harness.cluster.calls)
    await harness.go(4)
    assert harness.cluster.calls[calls:] == []
    harness.cluster.now += 20
    await harness.go()
    assert harness.cluster.calls[calls:] == ["write_status"]


def sent_record(harness: ControllerHarness) -> Recorded:
    """The recorded state that the last poll sent to the leader."""
    (secret,), pod = harness.cluster.secrets.values(), harness.status.trainers[0].pod
    text = unseal(secret["stringData"][env.KEY_NAME].encode(), pod, harness.cluster.recorded[pod])
    assert text is not None
    return from_json(Recorded, text)


async def test_leader_gets_the_recorded_state_once_the_status_is_written() -> None:
    total = 200_000
    harness = ControllerHarness(
        spec(snapshots__interval={"mode": "Fixed", "seconds": 3600}, data__samples=total), total=total
    )
    await harness.go(8)
    generation = harness.status.counters.generation
    assert sent_record(harness) == Recorded(generation, "", 0)
    (plane,) = harness.cluster.planes.values()
    plane.store.anchors.append(AnchorRef("job/7", "", generation, 7, 70))
    await harness.go()
    assert sent_record(harness).anchor == "", "its answer was not written yet"
    assert harness.status.anchors[-1].key == "job/7"
    await harness.go()
    assert sent_record(harness).anchor == "job/7"


async def test_leader_that_runs_when_the_job_succeeds_gets_the_recorded_state() -> None:
    harness = ControllerHarness()
    while harness.status.phase != "Succeeded":
        await harness.go()
    harness.cluster.recorded.clear()
    await harness.go()
    assert harness.cluster.recorded == {}
    harness.cluster.pods[harness.status.trainers[0].pod].phase = "Running"
    assert await harness.go() == 1.0, "the next pass is soon"
    assert sent_record(harness).anchor == harness.status.anchors[-1].key


@pytest.mark.parametrize(
    ("wrong", "mended", "text"),
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
    wrong: dict[str, Any], mended: dict[str, Any], text: str
) -> None:
    harness = ControllerHarness(spec(**wrong))
    await harness.go(3)
    status, reason, message = harness.condition("PodsReady")
    assert (status, reason) == ("False", "InvalidSpec")
    assert text in message
    assert harness.cluster.calls == ["write_status", "emit"]
    harness.cluster.set_spec("job", **mended)
    await harness.go(8)
    assert harness.status.phase == "Running"


async def test_new_jobs_do_not_start_under_an_outdated_schema_and_a_running_one_continues() -> None:
    harness = ControllerHarness(admission_gate=AdmissionGate("True", "SchemaDiffers", "the CRD is old: upgrade it"))
    await harness.go(3)
    assert harness.condition("CRDOutdated") == ("True", "SchemaDiffers", "the CRD is old: upgrade it")
    assert harness.cluster.pods == {}
    harness.gate = None
    await harness.go(8)
    assert (harness.status.phase, harness.condition("CRDOutdated")[0]) == ("Running", "False")
    harness.gate = AdmissionGate("True", "SchemaDiffers", "the CRD is old again")
    await harness.go(60)
    assert harness.status.phase == "Succeeded"


async def test_unreadable_crd_delays_a_job_only_until_it_is_read() -> None:
    """The API server fails at the operator's start, and answers a little later."""
    harness = ControllerHarness()
    now = 0.0
    answers: list[UnavailableError | dict[str, str]]
    answers = [UnavailableError("etcd has no leader"), {crd.HASH_ANNOTATION: crd.schema_hash()}]

    async def read() -> Mapping[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    installed = InstalledCrd(read, lambda: now)
    harness.controller = Controller(
        harness.cluster, lambda: harness.cluster.now, admission_gate=installed.admission_gate
    )
    await harness.go(3)
    state, reason, message = harness.condition("CRDOutdated")
    assert (state, reason) == ("Unknown", "Unknown")
    assert "etcd has no leader" in message
    assert len(answers) == 1, "it is not asked again at once"
    now = 60.0
    await harness.go(8)
    assert (harness.status.phase, harness.condition("CRDOutdated")[0]) == ("Running", "False")


async def test_a_job_created_suspended_starts_no_pods() -> None:
    harness = ControllerHarness(spec(suspend=True))
    await harness.go(3)
    assert (harness.status.phase, harness.cluster.pods) == ("Suspended", {})
    harness.cluster.set_spec("job", suspend=False, shards={"replicas": 2})
    await harness.go(8)
    assert (harness.status.phase, len(harness.status.shards), harness.status.counters.generation) == ("Running", 2, 1)


async def test_early_change_of_the_number_of_shards_waits_with_a_condition() -> None:
    """An API server does not let it happen; an old CRD would."""
    harness = ControllerHarness()
    await harness.go(3)
    harness.cluster.set_spec("job", shards={"replicas": 2})
    await harness.go(1)
    state, reason, message = harness.condition("Suspended")
    assert (state, reason) == ("False", "ShardsDiffer")
    assert "spec.shards.replicas" in message
    assert "set spec.suspend to true" in message
    assert len(harness.status.shards) == 3
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(1)
    assert (len(harness.status.shards), harness.condition("Suspended")[1]) == (2, "Active")


async def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    harness = ControllerHarness()
    job = harness.cluster.jobs["default", "job"]
    harness.cluster.jobs["default", "job"] = type(job)(
        **{f: getattr(job, f) for f in job.__slots__} | {"deleting": True}
    )
    await harness.go(2)
    assert harness.cluster.calls == []


@pytest.mark.parametrize("answer", [None, b"<html>"])
async def test_missing_and_invalid_answers_are_no_evidence(answer: bytes | None) -> None:
    harness = ControllerHarness()
    await harness.go(8)
    before = harness.status.shards, harness.status.trainers

    async def fetch(
        pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        return answer

    harness.cluster.fetch_report = fetch
    await harness.go(4)
    assert harness.condition("ReportsAvailable")[:2] == ("False", "NoAnswer")
    assert (harness.status.shards, harness.status.trainers, harness.status.restarts) == (*before, 0)


async def test_finished_job_stays_finished_and_is_deleted_after_its_ttl() -> None:
    harness = ControllerHarness(spec(ttlSecondsAfterFinished=100))
    await harness.go(60)
    assert harness.status.phase == "Succeeded"
    before = harness.status
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(2)
    assert harness.status == before
    harness.cluster.now += 100
    assert harness.deleted == []
    await harness.go()
    assert harness.cluster.jobs == {}
    assert await harness.go() is None
    assert harness.deleted[-1:] == ["job"], "whatever the operator keeps of it is forgotten"


async def test_pods_of_an_earlier_job_of_the_name_are_not_touched() -> None:
    harness = ControllerHarness()
    await harness.go(8)
    old = {name: pod.uid for name, pod in harness.cluster.pods.items()}
    job = harness.cluster.jobs.pop(("default", "job"))
    harness.cluster.add_job("job", job.spec, uid="abcdef00-1111")
    await harness.go(8)
    assert all(harness.cluster.pods[name].deleting_until is None for name in old)
    assert len(harness.cluster.pods) == 2 * len(old)


async def test_the_log_of_the_last_incarnation_is_kept_and_older_ones_go() -> None:
    harness = ControllerHarness()
    await harness.go(8)
    for _ in range(2):
        harness.cluster.kill("shard", 1)
        await harness.go(12)
    names = sorted(name for name in harness.cluster.pods if "shard-1" in name)
    assert names == ["job-12345-shard-1-2", "job-12345-shard-1-3"]


async def test_rosters_are_written_only_to_concerned_members() -> None:
    harness = ControllerHarness()
    await harness.go(8)
    before = {name: pod.view().roster_version for name, pod in harness.cluster.pods.items()}
    harness.cluster.kill("shard", 1)
    await harness.go(4)
    notified = {
        n for n, p in harness.cluster.pods.items() if before.get(n, p.view().roster_version) != p.view().roster_version
    }
    assert notified == {"job-12345-trainer-0-1", "job-12345-trainer-1-1"}
