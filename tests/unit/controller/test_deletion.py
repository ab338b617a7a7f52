"""Jobs that are deleted with their saves: what becomes of the saves, and that nothing holds the job for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.codec import to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.snapshots_spec import Store
from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.controller import Controller
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile import Job, reconcile
from cpr_operator.reconcile.deletion import ATTEMPTS, FINALIZER, LIMIT_S, anchors_in_use, location
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.deletions import DELETIONS, WITH_SAVES, end_of_deletion
from simulation.control_plane.run import RunResult, Simulation, input_in_mid_training
from simulation.control_plane.workload import spec

BY_NAME = {scenario.name: scenario for scenario in DELETIONS}
#: With how many attempts.
EVERYTHING_GOES = {
    "deleted with its saves": [1],
    "deleted with its saves before anything is trained": [1],
    "deleted with its saves when it is over": [1],
    "deleted with its saves in time": [1],
    "deleted with its saves while it is suspended": [1],
    "deleted with its saves while a shard is replaced": [1],
    "deleted with its saves while a node is lost": [1],
    "deleted with its saves while the store is down for a while": range(2, ATTEMPTS),
    "deleted with its saves, and the cleanup is killed": [2],
}
FINISHED: dict[str, RunResult] = {}


async def live(name: str) -> RunResult:
    """The scenario's end. It runs once."""
    if name not in FINISHED:
        FINISHED[name] = await Simulation(BY_NAME[name]).run()
        assert ("default", "job") not in FINISHED[name].cluster.jobs
    return FINISHED[name]


def message_of(finished: RunResult, reason: str) -> str:
    return "; ".join(event.message for event in finished.cluster.events.values() if event.reason == reason)


def attempts(finished: RunResult) -> list[str]:
    return [name for name, _ in finished.cluster.history if "cleanup" in name]


@pytest.mark.parametrize("name", BY_NAME)
async def test_a_deleted_job_goes(name: str) -> None:
    finished = await live(name)
    assert ("default", "job") not in finished.cluster.jobs


async def test_job_without_the_field_has_no_finalizer_and_no_cleanup() -> None:
    finished = await live("deleted")
    assert "set_finalizers" not in finished.cluster.calls
    assert end_of_deletion(finished) == (False, [None], set())
    assert attempts(finished) == []


@pytest.mark.parametrize("name", EVERYTHING_GOES)
async def test_all_saves_go_with_their_job(name: str) -> None:
    finished = await live(name)
    assert end_of_deletion(finished) == (False, [()], {"SavesDeleted"})
    assert "7 objects, 7,000 bytes" in message_of(finished, "SavesDeleted")
    assert len(attempts(finished)) in EVERYTHING_GOES[name]


async def test_cleanup_waits_while_a_pod_may_still_write() -> None:
    driver = Simulation(BY_NAME["deleted with its saves"])
    alone = []
    follow = driver.cluster.on_pod

    def watch(job: str, pod: PodView) -> None:
        running = {p.view().role for p in driver.cluster.pods.values() if p.phase == "Running"}
        if "cleanup" in running:
            alone.append(running)
        follow(job, pod)

    driver.cluster.on_pod = watch
    await driver.run()
    assert alone
    assert all(running == {"cleanup"} for running in alone)


@pytest.mark.parametrize(
    ("name", "tries", "text"),
    [
        ("deleted with its saves while the store is down for ever", ATTEMPTS, "The store does not answer. Check it."),
        ("deleted with its saves while no pod can be created", 0, "exceeded quota"),
    ],
)
async def test_saves_that_cannot_be_deleted_are_reported_with_the_command(name: str, tries: int, text: str) -> None:
    finished = await live(name)
    assert end_of_deletion(finished) == (False, [None], {"SavesLeft"})
    assert len(attempts(finished)) == tries
    message = message_of(finished, "SavesLeft")
    assert text in message
    assert "cprjob snapshots prune file:///store/saves --job 12345678-0000 --all --delete" in message


async def test_a_deletion_is_over_within_its_limit() -> None:
    driver = Simulation(BY_NAME["deleted with its saves while no pod can be created"])
    began = []

    def note(call: str, _number: int, when: str) -> None:
        if (call, when) == ("set_finalizers", "after"):
            began.append(driver.cluster.now)

    driver.cluster.fault = note
    finished = await driver.run()
    since = finished.status.deleting_since
    assert since is not None
    assert LIMIT_S <= began[-1] - since <= LIMIT_S + 2 * 60


async def test_terminating_namespace_ends_all_waits() -> None:
    finished = await live("deleted with its saves and its namespace")
    assert end_of_deletion(finished) == (False, [None], set()), "no event can be created there either"
    assert attempts(finished) == []
    since = finished.status.deleting_since
    assert since is not None
    assert finished.cluster.now - since < 15


async def test_anchors_that_another_job_restores_from_are_spared() -> None:
    finished = await live("deleted with its saves, except an anchor that another job needs")
    assert end_of_deletion(finished) == (False, [("12345678-0000/anchor",)], {"SavesDeleted"})
    assert "12345678-0000/anchor" in message_of(finished, "SavesDeleted")


async def test_job_that_never_started_is_deleted_at_once() -> None:
    finished = await live("deleted with its saves before it began")
    assert finished.cluster.history == []
    assert finished.cluster.events == {}


async def test_the_finalizer_is_set_before_the_first_status_is_written_and_others_are_left_alone() -> None:
    cluster = SimulatedCluster(2000)
    await cluster.set_finalizers(cluster.add_job("job", WITH_SAVES), ("example.com/other",))
    cluster.calls.clear()
    controller = Controller(cluster, lambda: cluster.now)
    await controller.run_pass("default", "job")
    assert cluster.calls[:2] == ["set_finalizers", "write_status"]
    assert cluster.jobs["default", "job"].finalizers == ("example.com/other", FINALIZER)
    cluster.set_spec("job", **spec())
    await controller.run_pass("default", "job")
    assert cluster.jobs["default", "job"].finalizers == ("example.com/other",)


async def test_cleanup_that_cannot_be_created_is_reported_and_blocks_nothing() -> None:
    observed = await input_in_mid_training(2)
    spec = observed.job.spec.model_copy(
        update={
            "snapshots": observed.job.spec.snapshots.model_copy(update={"delete_with_job": True}),
            "trainers": observed.job.spec.trainers.model_copy(update={"template": {"spec": {"containers": [None]}}}),
        }
    )
    outcome = reconcile(
        replace(observed, job=replace(observed.job, spec=spec, deleting=True, has_finalizer=True), pods=())
    )
    assert outcome.release
    assert outcome.status.deleting_since == observed.now
    (event,) = outcome.events
    assert event.reason == "SavesLeft"
    assert "cannot be made" in event.message


def restoring_job(restore_from: str | None, *, namespace: str = "default", **fields: Any) -> JobView:
    """A job that has started from an anchor of another one, or has this status and store."""
    store = fields.pop("store", {"endpoint": "file:///store", "bucket": "saves"})
    job_spec = to_job_spec(parse_spec(spec()), "h", "heir", found=restore_from)
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", **fields.pop("status", {})}
    status = {"runtime": {"jobSpec": to_json(job_spec)}, **status}
    status = {name: value for name, value in status.items() if value is not None}
    return JobView(namespace, "heir", "h", 1, "1", 0.0, spec={"snapshots": {"store": store}}, status=status, **fields)


RESTORING_JOBS = [
    ("that runs", restoring_job("uid/one", deleting=False), True),
    ("that is suspended", restoring_job("uid/one", deleting=False, status={"phase": "Suspended"}), True),
    ("that has an anchor", restoring_job("uid/one", deleting=False, status={"anchors": [{"key": "h/a"}]}), False),
    (
        "that never started",
        restoring_job("uid/one", deleting=False, status={"phase": "Suspended", "startTime": None}),
        False,
    ),
    (
        "whose description cannot be read",
        restoring_job("uid/one", deleting=False, status={"runtime": {"jobSpec": "{"}}),
        False,
    ),
    ("that is over", restoring_job("uid/one", deleting=False, status={"phase": "Succeeded"}), False),
    ("that goes", restoring_job("uid/one", deleting=True), False),
    ("that names another's", restoring_job("uid2/one", deleting=False), False),
    ("that names none", restoring_job(None, deleting=False), False),
    ("of another namespace", restoring_job("uid/one", namespace="mallory", deleting=False), False),
    (
        "of another bucket",
        restoring_job("uid/one", deleting=False, store={"endpoint": "file:///store", "bucket": "b"}),
        False,
    ),
    (
        "of another prefix",
        restoring_job("uid/one", deleting=False, store={"endpoint": "file:///store", "bucket": "saves", "prefix": "p"}),
        False,
    ),
]


@pytest.mark.parametrize(
    ("other", "counts"), [each[1:] for each in RESTORING_JOBS], ids=[each[0] for each in RESTORING_JOBS]
)
def test_an_anchor_is_spared_for_a_job(other: JobView, *, counts: bool) -> None:
    job = Job(
        JobId("default", "job", "uid"),
        1,
        deleting=True,
        spec=parse_spec(WITH_SAVES),
        status=Status(),
        has_finalizer=True,
    )
    assert anchors_in_use(job, [other]) == (("uid/one",) if counts else ())


@pytest.mark.parametrize(
    ("store", "option"),
    [
        ({"endpoint": "https://s3.example/", "bucket": "b"}, "s3://b --endpoint https://s3.example/"),
        ({"endpoint": "http://h:9000", "bucket": "b", "prefix": "/x/y/"}, "s3://b/x/y --endpoint http://h:9000"),
        ({"endpoint": "file:///folder", "bucket": "b", "prefix": "x"}, "file:///folder/b/x"),
    ],
)
def test_location_of_a_store_is_reported_as_the_command_line_takes_it(store: dict[str, str], option: str) -> None:
    assert location(Store.model_validate(store)) == option
