"""The behaviour of every `Cluster` with objects, errors included. Pods need not start here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ConflictError,
    Event,
    NotFoundError,
    PodPatch,
    Priority,
    RefusedError,
)
from support.benches import NAMESPACE, Bench, pod_manifest


def disruption_budget(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"cprjob.io/job": name}}},
    }


async def test_job_is_listed_in_its_namespace(bench: Bench) -> None:
    job = await bench.make_job("listed")
    assert job.uid in {each.uid for each in await bench.cluster.list_jobs((NAMESPACE,))}
    assert job.uid in {each.uid for each in await bench.cluster.list_jobs(())}
    assert job.uid not in {each.uid for each in await bench.cluster.list_jobs(("elsewhere",))}


async def test_status_is_replaced_and_nothing_else(bench: Bench) -> None:
    job = await bench.make_job("status")
    first = await bench.cluster.write_status(job, {"phase": "Starting", "restarts": 1})
    second = await bench.cluster.write_status(first, {"phase": "Running"})
    read = await bench.cluster.get_job(NAMESPACE, "status")
    assert read == second
    assert read.status["phase"] == "Running"
    assert "restarts" not in read.status
    assert (read.spec, read.spec_generation, read.uid) == (job.spec, job.spec_generation, job.uid)


async def test_status_under_an_old_version_conflicts(bench: Bench) -> None:
    job = await bench.make_job("conflict")
    await bench.suspend("conflict")
    with pytest.raises(ConflictError):
        await bench.cluster.write_status(job, {"phase": "Running"})
    read = await bench.cluster.get_job(NAMESPACE, "conflict")
    assert read.spec["suspend"] is True
    assert read.spec_generation == job.spec_generation + 1
    assert "phase" not in read.status


async def test_status_of_a_deleted_job_is_not_found(bench: Bench) -> None:
    job = await bench.make_job("gone")
    await bench.cluster.delete_job(job)
    with pytest.raises(NotFoundError):
        await bench.cluster.write_status(job, {"phase": "Running"})
    with pytest.raises(NotFoundError):
        await bench.cluster.delete_job(job)
    with pytest.raises(NotFoundError):
        await bench.cluster.get_job(NAMESPACE, "gone")


async def test_status_never_reaches_a_later_job_of_the_same_name(bench: Bench) -> None:
    old = await bench.make_job("again")
    await bench.cluster.delete_job(old)
    new = await bench.make_job("again")
    assert new.uid != old.uid
    with pytest.raises(ConflictError):
        await bench.cluster.write_status(old, {"phase": "Running"})
    with pytest.raises(NotFoundError):
        await bench.cluster.delete_job(old)
    assert (await bench.cluster.get_job(NAMESPACE, "again")).uid == new.uid


async def test_finalizer_blocks_the_deletion_of_a_job(bench: Bench) -> None:
    job = await bench.cluster.set_finalizers(await bench.make_job("held"), ("cprjob.io/test",))
    assert job.finalizers == ("cprjob.io/test",)
    await bench.cluster.delete_job(job)
    going = await bench.cluster.get_job(NAMESPACE, "held")
    assert going.deleting
    with pytest.raises(ConflictError):
        await bench.cluster.set_finalizers(job, ())
    await bench.cluster.set_finalizers(going, ())
    with pytest.raises(NotFoundError):
        await bench.cluster.get_job(NAMESPACE, "held")


async def test_pod_is_created_once(bench: Bench) -> None:
    job = await bench.make_job("once")
    manifest = pod_manifest(job, index=2, incarnation=5)
    created = await bench.cluster.create_pod(manifest)
    assert (created.role, created.index, created.incarnation) == ("shard", 2, 5)
    assert (created.owner_uid, created.phase, created.roster_version) == (job.uid, "Pending", 3)
    with pytest.raises(AlreadyExistsError):
        await bench.cluster.create_pod(manifest)
    assert [pod.uid for pod in await bench.cluster.list_pods(job)] == [created.uid]


async def test_pods_of_an_earlier_job_of_the_same_name_are_listed_with_their_owner(bench: Bench) -> None:
    job = await bench.make_job("heir")
    stranger = pod_manifest(job)
    stranger["metadata"]["ownerReferences"][0]["uid"] = "earlier"
    await bench.cluster.create_pod(stranger)
    assert [pod.owner_uid for pod in await bench.cluster.list_pods(job)] == ["earlier"]
    assert await bench.cluster.list_pods(await bench.make_job("other")) == ()


async def test_cached_list_shows_the_pods_eventually(bench: Bench) -> None:
    job = await bench.make_job("cached")
    regular = bench.cluster.at(Priority.REGULAR)
    created = await bench.cluster.create_pod(pod_manifest(job))
    async with asyncio.timeout(120):
        while not (pods := await regular.list_pods(job, cached=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [pod.uid for pod in pods] == [created.uid]


async def test_impossible_pod_is_refused_and_dry_run_creates_nothing(bench: Bench) -> None:
    job = await bench.make_job("refused")
    await bench.cluster.check_pod(pod_manifest(job))
    assert await bench.cluster.list_pods(job) == ()
    manifest = pod_manifest(job)
    manifest["spec"]["containers"] = []
    for create in (bench.cluster.check_pod, bench.cluster.create_pod):
        with pytest.raises(RefusedError, match="container"):
            await create(manifest)


async def test_pod_of_another_uid_is_not_deleted(bench: Bench) -> None:
    job = await bench.make_job("deleted")
    pod = await bench.cluster.create_pod(pod_manifest(job))
    await bench.cluster.delete_pod(NAMESPACE, pod.name, "another", 0)
    assert len(await bench.cluster.list_pods(job)) == 1
    await bench.cluster.delete_pod(NAMESPACE, pod.name, pod.uid, 0)
    assert await bench.cluster.list_pods(job) == ()
    await bench.cluster.delete_pod(NAMESPACE, pod.name, pod.uid, None)  # gone is success


async def test_pod_patch_changes_labels_and_annotations_together(bench: Bench) -> None:
    job = await bench.make_job("promoted")
    pod = await bench.cluster.create_pod(pod_manifest(job, index=2, incarnation=5))
    labels = {"cprjob.io/index": "1", "cprjob.io/incarnation": "7"}
    roster = {"cprjob.io/roster-version": "9"}
    for name, uid in ((pod.name, "another"), ("nobody", pod.uid)):
        with pytest.raises(NotFoundError):
            await bench.cluster.patch_pod(NAMESPACE, PodPatch(name, uid, roster, labels))
    assert [(p.index, p.incarnation, p.roster_version) for p in await bench.cluster.list_pods(job)] == [(2, 5, 3)]
    await bench.cluster.patch_pod(NAMESPACE, PodPatch(pod.name, pod.uid, roster, labels))
    (read,) = await bench.cluster.list_pods(job)
    assert (read.role, read.index, read.incarnation, read.roster_version) == ("shard", 1, 7, 9)
    await bench.cluster.patch_pod(NAMESPACE, PodPatch(pod.name, pod.uid, {"cprjob.io/roster-version": "10"}))
    assert [(p.index, p.roster_version) for p in await bench.cluster.list_pods(job)] == [(1, 10)]


async def test_objects_may_be_made_and_deleted_twice(bench: Bench) -> None:
    job = await bench.make_job("twice")
    meta = {"name": "twice", "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"key": "a"}}
    event = Event("Normal", "Started", "It began.", key="start")
    assert not await bench.cluster.has_secret(secret)
    for _ in range(2):
        await bench.cluster.create_secret(secret)
        assert await bench.cluster.has_secret(secret)
        await bench.cluster.apply(disruption_budget("twice"))
        await bench.cluster.emit(job, event)
    for _ in range(2):
        await bench.cluster.delete("PodDisruptionBudget", NAMESPACE, "twice")
        await bench.cluster.delete("Secret", NAMESPACE, "twice")
    assert not await bench.cluster.has_secret(secret)


async def test_second_create_leaves_the_object_as_it_is(bench: Bench) -> None:
    created = []
    for _ in range(2):
        await bench.cluster.create(disruption_budget("created"))
        created.append(await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "created"))
    assert created[0] is not None
    assert created[0] == created[1]
    await bench.cluster.delete("PodDisruptionBudget", NAMESPACE, "created")


async def test_status_of_an_object_is_merged_under_the_version_that_was_read(bench: Bench) -> None:
    counts = {"currentHealthy": 2, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 3}
    assert await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "merged") is None
    await bench.cluster.apply(disruption_budget("merged"))
    first = await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "merged")
    assert first is not None
    await bench.cluster.merge_status(first, {**counts, "observedGeneration": 5})
    with pytest.raises(ConflictError):
        await bench.cluster.merge_status(first, counts)
    second = await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "merged")
    assert second is not None
    assert second["spec"]["minAvailable"] == 1
    assert second["status"]["expectedPods"] == 3
    await bench.cluster.merge_status(second, {"observedGeneration": None})
    third = await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "merged")
    assert third is not None
    assert "observedGeneration" not in third["status"]
    await bench.cluster.delete("PodDisruptionBudget", NAMESPACE, "merged")
    with pytest.raises(NotFoundError):
        await bench.cluster.merge_status(third, counts)


async def test_object_stays_until_its_finalizer_is_removed(bench: Bench) -> None:
    finalizer = "cprjob.io/test"
    await bench.cluster.apply(disruption_budget("kept", finalizers=[finalizer]))
    first = await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "kept")
    assert first is not None
    await bench.cluster.delete("PodDisruptionBudget", NAMESPACE, "kept")
    with pytest.raises(ConflictError):
        await bench.cluster.remove_finalizer(first, finalizer)
    second = await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "kept")
    assert second is not None
    assert "deletionTimestamp" in second["metadata"]
    await bench.cluster.remove_finalizer(second, finalizer)
    assert await bench.cluster.read("PodDisruptionBudget", NAMESPACE, "kept") is None
    with pytest.raises(NotFoundError):
        await bench.cluster.remove_finalizer(second, finalizer)


async def test_pod_without_an_address_reports_nothing(bench: Bench) -> None:
    job = await bench.make_job("silent")
    pod = await bench.cluster.create_pod(pod_manifest(job))
    assert await bench.cluster.fetch_report(pod, 0.1, 1024) is None
