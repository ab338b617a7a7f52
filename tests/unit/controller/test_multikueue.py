"""A job that MultiKueue runs: the cluster in which it is submitted, and the worker cluster. Kueue's part is played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import env
from cpr_operator.api.status import Condition
from cpr_operator.desired.workload import MULTIKUEUE, PREBUILT, QUEUE_LABEL, QUOTA_FINALIZER
from cpr_operator.reconcile.dispatch import SUSPENDED_WITHIN_S
from cpr_operator.reconcile.kueue import holds_quota, is_deleted, owner_of, true_condition, with_changed
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.kueue import (
    STAMP,
    admit,
    counts,
    delete_workload,
    is_finished,
    no_workload,
    preempt,
    waits,
    workload,
)
from simulation.control_plane.run import Simulation
from simulation.control_plane.scenarios import ALL_MEMBERS, HALF, TIGHT
from simulation.control_plane.workload import Action, Scenario, Trigger, phase, spec

WORKER_UID = "87654321-0000"


def submitted(**fields: Any) -> Simulation:
    """The cluster in which a user creates the job."""
    return Simulation(Scenario("submitted", (), spec(managedBy=MULTIKUEUE, **fields), queue="team"))


def created(manager: Simulation, *steps: tuple[Trigger, Action], **fields: Any) -> Simulation:
    """The worker cluster, in which MultiKueue has created the Workload, admitted since, and then the job."""
    found = workload(manager.cluster)
    assert found is not None
    worker = Simulation(Scenario("created", steps, TIGHT, replaced=ALL_MEMBERS, queue="team"))
    labels, name = found["metadata"]["labels"] | {QUEUE_LABEL: "team"}, found["metadata"]["name"]
    copied = {part: found["metadata"][part] for part in ("name", "namespace", "labels", "annotations")}
    worker.cluster.applied.apply({**found, "metadata": copied, "status": {}})
    admit(worker.cluster)
    worker.cluster.add_job("job", {**TIGHT, **fields}, WORKER_UID, labels | {PREBUILT: name})
    return worker


def assign(cluster: SimulatedCluster) -> None:
    """The ClusterQueue and a worker admit the Workload."""
    admit(cluster)
    cluster.applied.merge_status(workload(cluster) or {}, {"clusterName": "worker-1"})


async def passes(driver: Simulation, count: int = 4) -> None:
    """Run passes over the job and over its Workload, which may wait for its release."""
    for _ in range(count):
        await driver.passes(1)
        await driver._release()


def quota(driver: Simulation) -> Condition:
    (found,) = [each for each in driver.status().conditions if each.type == "QuotaReserved"]
    return found


async def mirror(worker: Simulation, manager: Simulation, without: str = "") -> None:
    """Copy the job's status, as MultiKueue does after each change; older releases lack a field."""
    status = {name: value for name, value in status_of(worker).items() if name != without}
    await manager.cluster.write_status(manager.cluster.jobs["default", "job"], status)


async def started(manager: Simulation) -> Simulation:
    """The worker cluster of a job that trains there, with its status in the first cluster."""
    await manager.passes(2)
    assign(manager.cluster)
    worker = created(manager)
    while worker.status().phase != "Running":
        await worker.step()
    await mirror(worker, manager)
    return worker


def finish(cluster: SimulatedCluster) -> None:
    """Kueue finishes the Workload, as it is finished in the worker."""
    found = workload(cluster)
    assert found is not None
    conditions = with_changed(found, STAMP, ("Finished", True, "Succeeded", ""))
    cluster.applied.merge_status(found, {"conditions": conditions})


def status_of(driver: Simulation) -> dict[str, Any]:
    return dict(driver.cluster.jobs["default", "job"].status)


async def test_submitted_job_waits_in_its_queue_and_has_no_pods() -> None:
    manager = submitted()
    await manager.passes(2)
    assert counts(manager.cluster) == {"trainer": 2, "shard": 3}
    assert (manager.status().phase, quota(manager).reason) == ("Pending", "WaitsForQuota")
    assign(manager.cluster)
    await manager.passes(3)
    assert (manager.cluster.pods, manager.cluster.secrets) == ({}, {})
    assert manager.status().start_time is None
    assert (quota(manager).status, quota(manager).message) == ("True", "team admitted the job")


async def test_queue_without_workers_is_reported() -> None:
    manager = submitted()
    await manager.passes(2)
    admit(manager.cluster)
    await manager.passes(2)
    assert (quota(manager).status, quota(manager).reason) == ("False", "NoWorkers")


async def test_status_is_that_of_the_worker_cluster() -> None:
    manager = submitted()
    worker = await started(manager)
    mirrored = status_of(manager)
    await manager.passes(3)
    assert status_of(manager) == mirrored
    assert manager.cluster.pods == {}
    await worker.run()
    await mirror(worker, manager, without="shown")
    mirrored = status_of(manager)
    manager.cluster.now = worker.cluster.now + 60.0  # a write of progress alone may wait
    await manager.passes(3)
    assert (manager.status().phase, status_of(manager)) == ("Succeeded", mirrored)
    assert not is_finished(manager.cluster), "Kueue finishes it after it has copied the status"


async def test_ended_job_is_deleted_after_its_time_to_live() -> None:
    manager = submitted(ttlSecondsAfterFinished=0)
    await manager.passes(2)
    assign(manager.cluster)
    worker = created(manager, ttlSecondsAfterFinished=0)
    await worker.run()
    await worker.passes(3)
    assert worker.cluster.jobs, "Kueue has to read its end"
    await mirror(worker, manager)
    manager.cluster.now = worker.cluster.now + 60.0
    await passes(manager)
    assert manager.cluster.jobs, "the worker may need pods"
    finish(manager.cluster)
    await passes(manager)
    assert not manager.cluster.jobs
    assert no_workload(manager.cluster)


async def test_job_without_a_queue_is_not_found_by_multikueue() -> None:
    manager = submitted()
    manager.cluster.add_job("job", spec(managedBy=MULTIKUEUE))
    await manager.passes(2)
    assert (quota(manager).reason, "kueue.x-k8s.io/queue-name" in quota(manager).message) == ("NoQueue", True)


async def test_changed_job_that_has_not_started_enters_the_queue_again() -> None:
    manager = submitted()
    await manager.passes(2)
    manager.cluster.set_spec("job", trainers={"replicas": 3})
    await passes(manager)
    assert counts(manager.cluster) == {"trainer": 3, "shard": 3}
    before = (workload(manager.cluster) or {})["metadata"]["annotations"]
    manager.cluster.set_spec("job", image="corrected")
    await passes(manager)
    assert (workload(manager.cluster) or {})["metadata"]["annotations"] != before, "Kueue copies the new spec"


async def test_evicted_job_releases_its_quota_after_it_is_suspended_in_the_worker_cluster() -> None:
    manager = submitted()
    worker = await started(manager)
    preempt(manager.cluster)
    await manager.passes(3)
    assert holds_quota(workload(manager.cluster) or {})
    preempt(worker.cluster)
    while worker.status().phase != "Suspended":
        await worker.step()
    await mirror(worker, manager)
    await manager.passes(2)
    found = workload(manager.cluster)
    assert found is not None
    assert not holds_quota(found)
    assert true_condition(found, "Requeued")
    assert (manager.status().phase, manager.status().start_time) == ("Pending", None)
    assert (quota(manager).status, quota(manager).reason) == ("False", "Preempted")


async def test_quota_of_a_job_whose_worker_is_out_of_reach_is_released_later() -> None:
    manager = submitted()
    await started(manager)
    preempt(manager.cluster)
    await manager.passes(3)
    assert holds_quota(workload(manager.cluster) or {})
    manager.cluster.now += SUSPENDED_WITHIN_S + 2.0e9  # after STAMP
    await manager.passes(2)
    assert not holds_quota(workload(manager.cluster) or {})


async def test_workload_of_a_started_job_stays_although_the_requests_differ() -> None:
    manager = submitted()
    await started(manager)
    manager.cluster.set_spec("job", trainers={"replicas": 3})  # as after an upgrade with other requests
    await manager.passes(3)
    assert not is_deleted(workload(manager.cluster) or {})


async def test_workload_that_kueue_has_finished_stays_as_it_is() -> None:
    manager = submitted()
    worker = await started(manager)
    worker.cluster.set_spec("job", suspend=True)
    while worker.status().phase != "Suspended":
        await worker.step()
    await mirror(worker, manager)
    finish(manager.cluster)
    await manager.passes(3)
    assert holds_quota(workload(manager.cluster) or {})


async def test_job_whose_workload_was_deleted_enters_the_queue_again() -> None:
    manager = submitted()
    await started(manager)
    delete_workload(manager.cluster)
    await passes(manager)
    assert counts(manager.cluster) == {"trainer": 2, "shard": 3}
    assert not holds_quota(workload(manager.cluster) or {})
    assert (manager.status().phase, manager.status().start_time) == ("Pending", None), "its copy is gone"


async def test_without_kueue_the_operator_runs_the_job_itself() -> None:
    local = Simulation(Scenario("local", (), spec(managedBy=MULTIKUEUE)))
    await local.passes(2)
    assert len(local.cluster.pods) == 5


async def test_unreadable_status_of_another_release_stays_as_it_is() -> None:
    manager = submitted()
    await manager.passes(2)
    job = manager.cluster.jobs["default", "job"]
    newer = {"phase": "Pondering", "startTime": "2026-01-01T00:00:00Z"}
    await manager.cluster.write_status(job, newer)
    await manager.passes(2)
    assert status_of(manager) == newer


async def test_worker_cluster_trains_the_job_with_the_quota_of_the_prebuilt_workload() -> None:
    manager = submitted()
    await manager.passes(2)
    worker = created(manager, (HALF, preempt), (waits(), admit))
    await worker.passes(1)
    assert (owner_of(workload(worker.cluster) or {}), worker.cluster.pods) == (WORKER_UID, {})
    while worker.status().phase != "Running":
        await worker.step()
    found = workload(worker.cluster)
    assert found is not None
    assert found["metadata"]["labels"][env.LABEL_JOB_UID] == WORKER_UID
    assert found["metadata"]["finalizers"] == [QUOTA_FINALIZER]
    assert all(pod.manifest["spec"]["nodeSelector"] == {"pool": "spot"} for pod in worker.cluster.pods.values())
    finished = await worker.run()  # every step checks that pods have quota
    assert (finished.status.phase, "Suspended" in finished.phases) == ("Succeeded", True)
    assert finished.status.budget is not None
    assert finished.status.budget.spent == 0
    await worker.step()
    assert is_finished(worker.cluster)


async def test_name_of_a_prebuilt_workload_may_be_an_annotation() -> None:
    manager = submitted()
    await manager.passes(2)
    worker = created(manager)
    job = worker.cluster.jobs["default", "job"]
    name = job.labels[PREBUILT]
    labels = {key: value for key, value in job.labels.items() if key != PREBUILT}
    worker.cluster.jobs["default", "job"] = replace(job, labels=labels, annotations={PREBUILT: name})
    while worker.status().phase != "Running":
        await worker.step()
    assert (workload(worker.cluster) or {})["metadata"]["name"] == name


async def test_deleted_job_of_a_worker_cluster_holds_its_quota_until_its_pods_are_deleted() -> None:
    manager = submitted()
    await manager.passes(2)
    worker = created(manager, (HALF, lambda cluster: cluster.user_deletes("job")))
    finished = await worker.run()  # every step checks that pods have quota
    await worker.step()
    assert no_workload(finished.cluster)


def belongs_to_another(cluster: SimulatedCluster) -> None:
    found = workload(cluster)
    assert found is not None
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "other", "controller": True}
    cluster.applied.apply({**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}})


def is_missing(cluster: SimulatedCluster) -> None:
    cluster.objects.clear()


@pytest.mark.parametrize(
    ("happens", "fields", "reason"),
    [
        (belongs_to_another, {}, "WorkloadInUse"),
        (is_missing, {}, "WorkloadMissing"),
        (lambda _: None, {"trainers": {"replicas": 3}}, "WorkloadDiffers"),
    ],
)
async def test_unusable_prebuilt_workload_is_named(happens: Any, fields: dict[str, Any], reason: str) -> None:
    manager = submitted()
    await manager.passes(2)
    worker = created(manager, **fields)
    happens(worker.cluster)
    before = workload(worker.cluster)
    await worker.passes(4)
    assert (quota(worker).reason, worker.cluster.pods) == (reason, {})
    after = workload(worker.cluster)
    assert (before is None, before and before["spec"]) == (after is None, after and after["spec"])


async def test_suspended_job_of_a_worker_cluster_leaves_its_workload_to_multikueue() -> None:
    manager = submitted()
    await manager.passes(2)
    worker = created(manager, (phase("Running"), lambda cluster: cluster.set_spec("job", suspend=True)))
    while worker.status().phase != "Suspended":
        await worker.step()
    await worker.passes(3)
    assert holds_quota(workload(worker.cluster) or {})
