"""The publisher's pod: made while the job trains, replaced, asked to end, and no part of any other decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import to_json
from cpr_contract.published import Published, PublisherReport
from cpr_operator.api.status import PublishedModel
from cpr_operator.cluster.views import ContainerView, PodView
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.publishing import LAST_S, PAUSES, publisher_to_read
from cpr_operator.reconcile.types import Outcome, ReconcileInput
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec
from support.reconcile_inputs import with_pod, with_status, without_reports


@pytest.fixture
async def training() -> ReconcileInput:
    """A job that trains, and has no publisher yet."""
    driver = Simulation(Scenario("published", (), spec(publish={"to": "file:///models"})))
    await driver.passes(16)
    seen = await driver.reconcile_input()
    members = tuple(pod for pod in seen.pods if pod.role != env.ROLE_PUBLISHER)
    return replace(seen, pods=members, publishers=(), publisher_report=None)


def publisher(number: int = 1, phase: Any = "Running", **changes: Any) -> PodView:
    pod = PodView(f"job-publisher-{number}", f"uid-{number}", "", env.ROLE_PUBLISHER, 0, number, phase, created=0.0)
    return replace(pod, **changes)


def publishers_in(outcome: Outcome) -> list[str]:
    labels = (manifest["metadata"]["labels"] for manifest in outcome.creates)
    return [each[env.LABEL_INCARNATION] for each in labels if each[env.LABEL_ROLE] == env.ROLE_PUBLISHER]


def test_publisher_has_the_environment_of_its_program(training: ReconcileInput) -> None:
    (pod,) = reconcile(training).creates
    (main,) = pod["spec"]["containers"]
    names = {each["name"] for each in main["env"]}
    assert {env.SPEC, env.ADDRESS, env.PORT_BASE, env.SCRATCH_DIR} <= names
    assert (main["args"], pod["spec"]["terminationGracePeriodSeconds"]) == (["publisher"], 300)
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "CPRJob"


def test_ended_publisher_is_replaced_after_a_pause(training: ReconcileInput) -> None:
    now, pause_s = training.now, PAUSES * training.timing.changing_s
    ended = publisher(3, "Failed", created=now - pause_s + 0.4)
    early = reconcile(replace(training, publishers=(ended,)))
    assert publishers_in(early) == []
    assert early.wake_after_s is not None
    assert early.wake_after_s < 0.5
    late = reconcile(replace(training, publishers=(replace(ended, created=now - pause_s),)))
    assert publishers_in(late) == ["4"]
    assert late.status.failures == ()
    assert late.status.restarts == 0
    deleted = publisher(4, deleting_until=now + 300)
    assert publishers_in(reconcile(replace(training, publishers=(deleted,)))) == ["5"]
    assert publishers_in(reconcile(replace(training, publishers=(publisher(5),)))) == []


def test_publisher_changes_no_decision_of_a_recovery(training: ReconcileInput) -> None:
    lost = with_pod(
        without_reports(training, "shard/1"),
        "shard/1",
        phase="Failed",
        container=ContainerView("Terminated", "Error", "", 137),
    )
    alone = reconcile(replace(lost, publishers=(publisher(),)))
    for pods in ((), (publisher(1, "Failed"),), (publisher(deleting_until=lost.now + 300),)):
        outcome = reconcile(replace(lost, publishers=pods))
        assert outcome.status == alone.status
        assert publishers_in(outcome) == [], "nodes are for members first"


@pytest.mark.parametrize(
    "changes",
    [{"phase": "Failed"}, {"deleting_until": 1e9}, {"container": ContainerView("Terminated", "Error", "", 137)}],
    ids=["failed", "deleted", "ended"],
)
def test_pass_that_may_replace_a_member_reads_no_publisher(training: ReconcileInput, changes: dict[str, Any]) -> None:
    works = replace(training, publishers=(publisher(1, "Failed"), publisher(2)))
    assert publisher_to_read(works) == publisher(2)
    assert publisher_to_read(with_pod(works, "shard/1", **changes)) is None
    without = tuple(pod for pod in works.pods if (pod.role, pod.index) != (env.ROLE_SHARD, 1))
    assert publisher_to_read(replace(works, pods=without)) is None
    assert publisher_to_read(with_status(works, phase="Succeeded")) == publisher(2)
    assert publisher_to_read(with_status(works, phase="Recovering")) is None


def test_publisher_is_asked_to_end_with_the_job(training: ReconcileInput) -> None:
    works = replace(training, publishers=(publisher(),))
    assert not [each for each in reconcile(works).deletes if each.name == "job-publisher-1"]
    over = with_status(works, phase="Succeeded", completion_time=works.now)
    outcome = reconcile(over)
    assert [each.name for each in outcome.deletes if each.uid == "uid-1"] == ["job-publisher-1"]
    leaving = replace(over, publishers=(publisher(deleting_until=works.now + 300),))
    assert reconcile(leaving).wake_after_s == training.timing.changing_s


def test_last_model_is_published_by_another_publisher_if_none_lives(training: ReconcileInput) -> None:
    over = with_status(training, phase="Succeeded", completion_time=training.now)
    lost = replace(over, publishers=(publisher(2, "Failed"),))
    (pod,) = reconcile(lost).creates
    assert (pod["metadata"]["labels"][env.LABEL_INCARNATION], pod["spec"]["containers"][0]["args"]) == (
        "3",
        ["publisher", "--once"],
    )
    last = publisher(3, created=training.now + 1)
    assert not [each for each in reconcile(replace(over, publishers=(last,))).deletes if each.uid == "uid-3"]
    samples = over.before.progress.samples
    model = PublishedModel(sequence=9, anchor="a", step=1, samples=samples, time=1.0)
    assert reconcile(with_status(lost, published=model)).creates == ()
    assert reconcile(replace(lost, now=training.now + LAST_S)).creates == ()


def test_status_has_the_newest_model_of_any_publisher(training: ReconcileInput) -> None:
    uid = training.job.id.uid

    def report(sequence: int, job_uid: str = uid) -> PublisherReport:
        return PublisherReport(CONTRACT_VERSION, job_uid, Published(sequence, f"anchor-{sequence}", 10, 640, 5.0))

    said = replace(training, publishers=(publisher(),), publisher_report=report(7))
    published = reconcile(said).status.published
    assert published is not None
    assert (published.sequence, published.anchor, published.time) == (7, "anchor-7", 5.0)
    last = publisher(1, "Succeeded", container=ContainerView("Terminated", "Completed", to_json(report(8)), 0))
    known = with_status(replace(training, publishers=(last,)), published=published)
    after = reconcile(known).status.published
    assert after is not None
    assert after.sequence == 8, "in its termination message"
    others = replace(known, publishers=(publisher(),), publisher_report=report(9, "another job's"))
    assert reconcile(others).status.published == published
