"""The publisher's pod: made while the job trains, replaced, asked to end, and no part of any other decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import to_json
from cpr_contract.published import Published, PublisherReport
from cpr_contract.reports import Problem
from cpr_operator.api.status import Condition, PublishedModel
from cpr_operator.cluster.views import ContainerView, PodView
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.publishing import DOUBLINGS, LAST_S, PAUSES, publisher_to_read
from cpr_operator.reconcile.types import Outcome, ReconcileInput
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec
from support.reconcile_inputs import then, with_pod, with_status, without_reports


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


CRASHED = ContainerView("Terminated", "Error", to_json(Problem("BadSpec", "no such thing.", "Correct it.")), 1)


def degraded(outcome: Outcome) -> Condition | None:
    return next((each for each in outcome.status.conditions if each.type == "PublishingDegraded"), None)


def test_pause_before_a_publisher_doubles_with_each_failure_in_a_row(training: ReconcileInput) -> None:
    observed, pauses = training, list[float]()
    for number in range(1, DOUBLINGS + 4):
        failed = publisher(number, "Failed", container=CRASHED, created=observed.now)
        observed = replace(observed, publishers=(failed,))
        first_s, outcome = observed.now, reconcile(observed)
        while not publishers_in(outcome):
            assert outcome.wake_after_s is not None
            observed = then(observed, outcome, later_s=outcome.wake_after_s)
            outcome = reconcile(observed)
        pauses.append(observed.now - first_s)
        observed = then(observed, outcome, later_s=0)
    least = PAUSES * training.timing.changing_s
    assert pauses == pytest.approx([least * 2 ** min(times, DOUBLINGS) for times in range(len(pauses))])
    assert observed.before.publisher_failures == len(pauses)
    ended = publisher(20, "Succeeded", container=ContainerView("Terminated", "Completed", "", 0))
    assert reconcile(replace(observed, publishers=(ended,))).status.publisher_failures == len(pauses)
    report = PublisherReport(CONTRACT_VERSION, training.job.id.uid, Published(1, "a", 1, 64, 5.0))
    published = replace(observed, publishers=(publisher(21),), publisher_report=report)
    assert reconcile(published).status.publisher_failures == 0


def test_condition_has_the_reason_why_nothing_is_published(training: ReconcileInput) -> None:
    failed = publisher(1, "Failed", container=CRASHED, created=training.now)
    first = reconcile(replace(training, publishers=(failed,)))
    assert degraded(first) is None, "one failure is no alarm"
    again = reconcile(with_status(replace(training, publishers=(failed,)), publisher_failures=1))
    ended = publisher(1, "Succeeded", container=ContainerView("Terminated", "Completed", "", 0), created=training.now)
    terminated = reconcile(with_status(replace(training, publishers=(ended,)), publisher_failures=1))
    assert degraded(terminated) is None, "one that was asked to end has not failed"
    condition = degraded(again)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "BadSpec")
    assert condition.message.startswith("2 publishers have failed one after the other, the last one because no such")
    assert [each.reason for each in again.events if each.reason == "PublishingDegraded"] == ["PublishingDegraded"]
    works = then(replace(training, publishers=(publisher(2),)), again)
    later = reconcile(works)
    assert degraded(later) == condition, "until it has published"
    assert "PublishingDegraded" not in {each.reason for each in later.events}
    report = PublisherReport(CONTRACT_VERSION, training.job.id.uid, Published(1, "a", 1, 64, 5.0))
    healthy = degraded(reconcile(replace(works, publisher_report=report)))
    assert healthy is not None
    assert (healthy.status, healthy.reason) == ("False", "Healthy")
    waits = replace(report, problem=Problem("StoreFull", "the store is full.", "Enlarge it."))
    full = degraded(reconcile(replace(training, publishers=(publisher(2),), publisher_report=waits)))
    assert full is not None
    assert (full.status, full.reason, full.message) == ("True", "StoreFull", "the store is full. Enlarge it.")


def test_condition_names_what_keeps_a_publisher_from_its_start(training: ReconcileInput) -> None:
    pending = publisher(1, "Pending", unschedulable="0/3 nodes are available")
    condition = degraded(reconcile(replace(training, publishers=(pending,))))
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "Unschedulable")
    assert "0/3 nodes are available" in condition.message


def test_condition_states_that_the_last_model_is_missing(training: ReconcileInput) -> None:
    over = with_status(training, phase="Succeeded", completion_time=training.now)
    late = replace(over, now=training.now + LAST_S, publishers=(publisher(2, "Failed", container=CRASHED),))
    condition = degraded(reconcile(late))
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "LastModelMissing")
    assert degraded(reconcile(replace(late, publishers=(publisher(2),)))) is None, "it may still publish"
    model = PublishedModel(sequence=9, anchor="a", step=1, samples=over.before.progress.samples, time=1.0)
    assert degraded(reconcile(with_status(late, published=model))) is None


def test_log_of_a_failed_publisher_stays_while_its_successor_works(training: ReconcileInput) -> None:
    ended = [publisher(number, "Failed", container=CRASHED) for number in (1, 2)]
    outcome = reconcile(replace(training, publishers=(*ended, publisher(3))))
    assert [each.name for each in outcome.deletes if "publisher" in each.name] == ["job-publisher-1"]


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
