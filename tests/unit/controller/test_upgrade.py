"""An operator of the next release, or of a far one, takes over a job that trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import from_json
from cpr_contract.roster import ShardRoster, TrainerRoster
from cpr_contract.spec import JobSpec
from cpr_operator.api.status import Status
from cpr_operator.desired import rosters
from cpr_trainer.runtime import RosterFile
from simulation.control_plane.failpoints import kill
from simulation.control_plane.nodes import Pod
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec


async def in_mid_run() -> Simulation:
    driver = Simulation(Scenario("upgraded", (), spec()))
    await driver.passes(14)
    assert driver.status().phase == "Running"
    return driver


def upgrade(driver: Simulation, monkeypatch: pytest.MonkeyPatch, releases: int) -> None:
    """The operator is of a later release; pods keep their image."""
    monkeypatch.setattr(rosters, "CONTRACT_VERSION", CONTRACT_VERSION + releases)
    driver.take_over()


def reads(pod: Pod, folder: Path) -> ShardRoster | TrainerRoster | None:
    """The pod's roster as parsed by a process of the job's image."""
    path = folder / pod.name
    path.write_text(pod.meta["annotations"][env.ANNOTATION_ROSTER])
    kind: type[ShardRoster | TrainerRoster] = ShardRoster if pod.view().role == "shard" else TrainerRoster
    return RosterFile(path, kind).poll()


def job_spec_of(pod: Pod) -> JobSpec:
    (main,) = pod.manifest["spec"]["containers"]
    return from_json(JobSpec, next(each["value"] for each in main["env"] if each["name"] == env.SPEC))


async def test_next_operator_writes_documents_that_the_jobs_image_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await in_mid_run()
    before = {name: pod.view().roster_version for name, pod in driver.cluster.pods.items()}
    upgrade(driver, monkeypatch, 1)
    kill("shard", 1)(driver.cluster)
    await driver.passes(8)
    updated = [p for name, p in driver.cluster.pods.items() if before.get(name) != p.view().roster_version]
    assert {p.view().role for p in updated} == {"shard", "trainer"}
    for pod in updated:
        roster = reads(pod, tmp_path)
        assert roster is not None
        assert (roster.contract, job_spec_of(pod).contract) == (CONTRACT_VERSION, CONTRACT_VERSION)
    assert driver.status().phase == "Running"


async def test_a_job_resumes_in_the_version_that_its_image_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = await in_mid_run()
    upgrade(driver, monkeypatch, 1)
    for image, version in (("trainer:1", CONTRACT_VERSION), ("trainer:2", CONTRACT_VERSION + 1)):
        driver.cluster.set_spec("job", suspend=True)
        await driver.passes(20)
        driver.cluster.set_spec("job", suspend=False, image=image)
        await driver.passes(1)
        runtime = driver.status().runtime
        assert runtime is not None
        assert (runtime.contract_version, from_json(JobSpec, runtime.job_spec).contract) == (version, version)


async def test_job_of_an_unsupported_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = await in_mid_run()
    upgrade(driver, monkeypatch, 2)
    kill("shard", 1)(driver.cluster)
    driver.cluster.set_spec("job", suspend=True)
    calls = len(driver.cluster.calls)
    await driver.passes(8)
    assert set(driver.cluster.calls[calls:]) <= {"write_status", "create_secret", "apply"}
    found = next(c for c in driver.status().conditions if c.type == "PodsReady")
    assert (found.status, found.reason) == ("Unknown", "ContractNotSpoken")
    assert f"contract version {CONTRACT_VERSION}" in found.message
    upgrade(driver, monkeypatch, 0)
    await driver.passes(20)
    assert driver.status().phase == "Suspended"


async def test_a_new_job_starts_in_the_operators_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Simulation(Scenario("new", (), spec()))
    upgrade(driver, monkeypatch, 1)
    await driver.passes(1)
    status = Status.model_validate(driver.cluster.jobs["default", "job"].status)
    assert status.runtime is not None
    assert status.runtime.contract_version == CONTRACT_VERSION + 1


def resources_of(pod: Pod) -> object:
    (main,) = pod.manifest["spec"]["containers"]
    return main["resources"]


async def test_a_job_of_a_release_without_replay_does_as_before_until_its_end() -> None:
    """The new resource definition shows `replay: {mode: Auto}` in it, because that is the default now."""
    driver = await in_mid_run()
    before = {str(resources_of(pod)) for pod in driver.cluster.pods.values()}
    job = driver.cluster.jobs["default", "job"]
    older = {name: value for name, value in job.status["runtime"].items() if name != "replay"}
    driver.cluster.jobs["default", "job"] = replace(job, status={**job.status, "runtime": older})
    driver.cluster.set_spec("job", recovery={"replay": {"mode": "Auto"}})
    driver.take_over()
    kill("shard", 1)(driver.cluster)
    await driver.passes(10)
    status = driver.status()
    assert status.phase == "Running"
    (failure,) = status.failures
    assert failure.replayed_samples == 0
    assert failure.lost_samples, "as before, what the shard had learnt is lost and charged"
    assert status.plan is not None
    assert "replay" not in status.plan.reason
    driver.cluster.set_spec("job", suspend=True)
    await driver.passes(20)
    assert driver.status().phase == "Suspended"
    driver.cluster.set_spec("job", suspend=False)
    await driver.passes(2)
    runtime = driver.status().runtime
    assert runtime is not None
    assert (runtime.replay.memory_bytes, from_json(JobSpec, runtime.job_spec).replay_bytes) == (0, 0)
    assert {str(resources_of(pod)) for pod in driver.cluster.pods.values()} == before
