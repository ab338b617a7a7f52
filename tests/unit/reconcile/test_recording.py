"""The recorder of an ended job: made once, again if it fails, and never for long in the way of the job's deletion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json, unpack
from cpr_contract.limits import MAX_SHARDS
from cpr_contract.records import MAX_RECORD_BYTES, JobRecord, RecordedEvent
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import ContainerView, JobView, PodView
from cpr_operator.desired.record import Recording, packed_record
from cpr_operator.desired.workload import Place
from cpr_operator.reconcile.kueue import Queue
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.recording import ATTEMPTS, LAST_S
from cpr_operator.reconcile.types import Outcome, ReconcileInput, WorkloadStatus
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec
from support.reconcile_inputs import with_status

VIEW = JobView("default", "job", "uid-of-job", 1, "1", 0.0, deleting=False, spec=spec())


@pytest.fixture
async def ended() -> ReconcileInput:
    """A job that has succeeded just now, with a time to live of 0."""
    driver = Simulation(Scenario("ended", (), spec(ttlSecondsAfterFinished=0)))
    await driver.passes(16)
    seen = await driver.reconcile_input()
    seen = with_status(seen, phase="Succeeded", completion_time=seen.now, recovery=None)
    return replace(seen, pods=(), reports={}, recording=Recording(VIEW))


def recorder(number: int, phase: Any = "Running", code: int | None = None) -> PodView:
    pod = PodView(f"job-recorder-{number}", f"uid-{number}", "", env.ROLE_RECORDER, 0, number, phase, created=0.0)
    return pod if code is None else replace(pod, container=ContainerView("Terminated", "", "", code))


def records_in(outcome: Outcome) -> list[tuple[str, JobRecord]]:
    """Return the number and the record of each recorder that the outcome creates."""
    return [
        (
            manifest["metadata"]["labels"][env.LABEL_INCARNATION],
            from_json(JobRecord, unpack(manifest["metadata"]["annotations"][env.ANNOTATION_HISTORY])),
        )
        for manifest in outcome.creates
        if manifest["metadata"]["labels"][env.LABEL_ROLE] == env.ROLE_RECORDER
    ]


def test_ended_job_is_recorded_before_it_is_deleted(ended: ReconcileInput) -> None:
    outcome = reconcile(ended)
    ((number, record),) = records_in(outcome)
    assert (number, record.job_uid, json.loads(record.job)["status"]["phase"]) == ("1", "uid-of-job", "Succeeded")
    assert not outcome.delete_job
    waits = reconcile(replace(ended, recorders=(recorder(1),)))
    assert (records_in(waits), waits.delete_job) == ([], False)
    done = reconcile(replace(ended, recorders=(recorder(1, "Succeeded", 0),)))
    assert (records_in(done), done.delete_job) == ([], True)


@pytest.mark.parametrize("prebuilt", ["", "clicks-12345"])
def test_workload_is_finished_after_the_record_if_the_job_is_deleted_then(ended: ReconcileInput, prebuilt: str) -> None:
    """MultiKueue deletes the job of a prebuilt Workload once that is finished."""
    owner = {"kind": "CPRJob", "uid": ended.job.id.uid, "controller": True}
    found = {"metadata": {"name": "clicks-12345", "ownerReferences": [owner]}, "spec": {}, "status": {}}
    queued = replace(ended, queue=Queue(Place("team"), prebuilt, workload=found), recorders=(recorder(1),))
    recorded = replace(queued, recorders=(recorder(1, "Succeeded", 0),))
    finished = []
    for each in (queued, recorded):
        change = reconcile(each).workload
        assert isinstance(change, WorkloadStatus)
        finished.append("Finished" in {condition["type"] for condition in change.status["conditions"]})
    assert finished == [not prebuilt, True]


def test_failed_recorder_is_repeated_up_to_a_bound(ended: ReconcileInput) -> None:
    for number in range(1, ATTEMPTS):
        failed = reconcile(replace(ended, recorders=(recorder(number, "Failed", 1),)))
        assert [each for each, _ in records_in(failed)] == [str(number + 1)]
        assert not failed.delete_job
    last = reconcile(replace(ended, recorders=(recorder(ATTEMPTS, "Failed", 1),)))
    assert (records_in(last), last.delete_job) == ([], True)


def test_recorder_that_hangs_delays_nothing_for_long(ended: ReconcileInput) -> None:
    late = replace(ended, recorders=(recorder(1, "Pending"),), now=ended.now + LAST_S)
    outcome = reconcile(late)
    assert [each.name for each in outcome.deletes] == ["job-recorder-1"]
    assert outcome.delete_job


def test_job_without_recording_has_no_recorder(ended: ReconcileInput) -> None:
    outcome = reconcile(replace(ended, recording=None))
    assert (outcome.creates, outcome.delete_job) == ((), True)


def opened(text: str) -> tuple[JobRecord, Mapping[str, Any]]:
    record = from_json(JobRecord, unpack(text))
    return record, json.loads(record.job)


def test_record_has_no_templates_and_no_annotations() -> None:
    secret = {"spec": {"containers": [{"name": "main", "env": [{"name": "TOKEN", "value": "hidden"}]}]}}
    job = spec(trainers__template=secret, shards__template=secret)
    view = replace(VIEW, spec=job, annotations={"kubectl.kubernetes.io/last-applied-configuration": "hidden"})
    record, found = opened(packed_record(Recording(view), {"phase": "Running"}, (), 5.0))
    assert "hidden" not in record.job
    assert found["spec"]["trainers"]["replicas"] == job["trainers"]["replicas"]
    assert (record.written_s, found["metadata"]["uid"]) == (5.0, "uid-of-job")


def test_long_record_loses_old_events_first_then_its_spec() -> None:
    noise = [f"{number:x}" * 40 for number in range(1, 4000)]
    events = tuple(RecordedEvent(float(at), "Normal", "R", text, text) for at, text in enumerate(noise[:150]))
    last = Event("Normal", "Succeeded", "done", "last")
    short = packed_record(Recording(VIEW, events), {"phase": "Failed"}, (last,), 9.0)
    record, found = opened(short)
    assert (record.events[-1].key, record.events[-1].time_s) == ("last", 9.0)
    noisy = {"phase": "Failed", "notes": [hashlib.sha256(text.encode()).hexdigest() for text in noise[:800]]}
    large = replace(VIEW, spec={"noise": [hashlib.sha512(text.encode()).hexdigest() for text in noise[:800]]})
    text = packed_record(Recording(large, events), noisy, (last,), 9.0)
    record, found = opened(text)
    assert (record.events, found["spec"], found["status"]["phase"]) == ((), {}, "Failed")
    assert len(text) <= MAX_RECORD_BYTES
    huge = {"notes": [hashlib.sha512(text.encode()).hexdigest() for text in noise]}
    assert packed_record(Recording(VIEW), huge, (), 9.0) == ""


def test_record_of_a_thousand_shards_has_all_members() -> None:
    def members(role: type[Shard | Trainer], number: int) -> tuple[Any, ...]:
        names = [hashlib.sha256(f"{role.role}-{index}".encode()).hexdigest() for index in range(number)]
        places = {name: {"uid": name[:36], "pod": f"pod-{name}", "node": f"node-{name[-20:]}"} for name in names}
        return tuple(
            role(index=index, incarnation=2, started_at=1e9 + index**1.5, **places[name])
            for index, name in enumerate(names)
        )

    status = Status(phase="Running", shards=members(Shard, MAX_SHARDS), trainers=members(Trainer, 256))
    event = Event("Normal", "Running", "all pods are ready", "running")
    record, found = opened(packed_record(Recording(VIEW), status.to_dict(), (event,), 9.0))
    recorded = Status.model_validate(found["status"])
    assert [each.incarnation for each in recorded.shards] == [2] * MAX_SHARDS
    assert len(recorded.trainers) == 256
    assert (found["spec"]["data"], [each.key for each in record.events]) == (VIEW.spec["data"], ["running"])


def test_job_whose_record_is_too_long_has_no_recorder(ended: ReconcileInput) -> None:
    noise = {str(number): hashlib.sha512(str(number).encode()).hexdigest() for number in range(4000)}
    outcome = reconcile(replace(ended, recording=Recording(replace(VIEW, labels=noise))))
    assert (records_in(outcome), outcome.delete_job) == ([], True)
