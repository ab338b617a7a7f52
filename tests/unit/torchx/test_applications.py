from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from torchx.specs import AppDef, AppState, Resource, Role

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.crd import structural
from cpr_operator.api.member_status import ShardPhase, TrainerPhase
from cpr_operator.api.status import TERMINAL_PHASES, Phase, Status
from cpr_operator.client import Job
from cpr_operator.torchx.app_state import METADATA_FIELDS, REPLICA_STATES, STATES, response, state
from cpr_operator.torchx.application import SchedulerError, application, manifest
from cpr_operator.torchx.components import dlrm

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))
QUICKSTART = next(path for path in EXAMPLES if path.name == "quickstart.yaml")
#: The component takes files of one job.
JOBS = [
    path for path in EXAMPLES if "kind: CPRJob" in path.read_text("utf-8") and "\n---\n" not in path.read_text("utf-8")
]


def quickstart() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    return found


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_manifest_of_each_example_is_the_example(path: Path) -> None:
    document = yaml.safe_load(path.read_text("utf-8"))
    again = manifest(dlrm(str(path)), None)
    for group in ("trainers", "shards"):  # their numbers are stated
        again["spec"][group] = {"replicas": again["spec"][group]["replicas"]} | document["spec"].get(group, {})
        assert again["spec"][group]["replicas"] >= 1
        document["spec"][group] = again["spec"][group]
    assert again == document


def test_roles_have_the_resources_of_pods() -> None:
    trainer, shard = dlrm(str(QUICKSTART)).roles
    assert (trainer.name, trainer.num_replicas, trainer.image) == ("trainer", 1, "cprjob-trainer:0.1.0")
    assert (shard.name, shard.num_replicas, shard.image) == ("shard", 2, "cprjob-trainer:0.1.0")
    assert trainer.resource == Resource(cpu=1, gpu=0, memMB=1024)
    assert (shard.max_retries, shard.retry_policy.value) == (10, "REPLICA")


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, Resource(cpu=1, gpu=0, memMB=2048)),  # the operator's defaults
        ({"limits": {"cpu": "1500m", "memory": "3G", "nvidia.com/gpu": 2}}, Resource(cpu=2, gpu=2, memMB=2862)),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}, Resource(cpu=0, gpu=0, memMB=1024)),
        ({"requests": {"cpu": "many"}}, Resource(cpu=-1, gpu=0, memMB=0)),
    ],
)
def test_resources_are_those_of_the_main_container(resources: dict[str, Any], expected: Resource) -> None:
    job = quickstart()
    containers = [{"name": "side", "resources": {"requests": {"cpu": "9"}}}, {"name": "main", "resources": resources}]
    job["spec"]["trainers"]["template"]["spec"]["containers"] = containers
    assert application(job).get_role("trainer").resource == expected


def test_arguments_override_the_file() -> None:
    job = manifest(dlrm(str(QUICKSTART), image="other:1", trainers=4, shards=6, name="mine"), "team")
    assert job["metadata"] == {"name": "mine", "namespace": "team"}
    assert job["spec"]["image"] == "other:1"
    assert (job["spec"]["trainers"]["replicas"], job["spec"]["shards"]["replicas"]) == (4, 6)
    assert job["spec"]["shards"]["template"] == quickstart()["spec"]["shards"]["template"]


def test_changes_of_the_application_reach_the_job() -> None:
    app = dlrm(str(QUICKSTART))
    app.name = "changed"
    for role in app.roles:
        role.image, role.num_replicas = "other:2", 5
    job = manifest(app, None)
    assert (job["metadata"]["name"], job["spec"]["image"]) == ("changed", "other:2")
    assert (job["spec"]["trainers"]["replicas"], job["spec"]["shards"]["replicas"]) == (5, 5)


def test_invalid_file_is_refused_with_its_wrong_fields(tmp_path: Path) -> None:
    wrong = quickstart()
    wrong["spec"]["data"]["batchSize"] = "many"
    wrong["spec"]["modle"] = {}
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(wrong), "utf-8")
    with pytest.raises(SchedulerError, match="did you mean model") as error:
        dlrm(str(file))
    assert "spec.data.batchSize" in str(error.value)
    for text, message in (("", "contains 0 CPRJobs"), ("7", "is not an object")):
        file.write_text(text, "utf-8")
        with pytest.raises(SchedulerError, match=message):
            dlrm(str(file), name="any")


def test_other_application_is_refused_in_one_line() -> None:
    with pytest.raises(SchedulerError, match=r"run the component cprjob\.dlrm"):
        manifest(AppDef("echo", roles=[Role("echo", "image")]), None)
    app = dlrm(str(QUICKSTART))
    app.roles[0].image = "other"
    with pytest.raises(SchedulerError, match="2 images; give both the same"):
        manifest(app, None)
    app = dlrm(str(QUICKSTART))
    app.roles[1].num_replicas = 100_000
    with pytest.raises(SystemExit, match=r"spec\.shards\.replicas"):  # ends a command without a traceback
        manifest(app, None)


def job(*, suspend: bool = False, **status: Any) -> dict[str, Any]:
    """Return a job as the API server returns it, with its defaults."""
    spec = yaml.safe_load(QUICKSTART.read_text("utf-8"))["spec"] | {"suspend": suspend}
    complete = CPRJobSpec.model_validate(spec).model_dump(mode="json", by_alias=True)
    return {"metadata": {"name": "quickstart"}, "spec": complete, "status": status}


def condition(kind: str, status: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Because", "message": message}


def test_phases_have_states_and_only_final_ones_are_terminal() -> None:
    assert set(STATES) == set(get_args(Phase))
    assert set(REPLICA_STATES) == {*get_args(ShardPhase), *get_args(TrainerPhase)}
    ends = {AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED}
    assert {phase for phase in get_args(Phase) if state(Job(job(phase=phase))) in ends} == set(TERMINAL_PHASES)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("", AppState.CANCELLED),
        ("Pending", AppState.CANCELLED),
        ("Running", AppState.RUNNING),  # the operator has not reconciled the job yet
        ("Suspending", AppState.RUNNING),
        ("Suspended", AppState.CANCELLED),
        ("Succeeded", AppState.SUCCEEDED),
    ],
)
def test_suspended_job_is_cancelled_once_its_pods_are_deleted(phase: str, expected: AppState) -> None:
    assert state(Job(job(suspend=True, phase=phase))) == expected


def test_job_without_a_phase_is_submitted_and_another_phase_is_unknown() -> None:
    new = job()
    del new["status"]
    assert state(Job(new)) == AppState.SUBMITTED
    assert response("default:new", Job(new)).msg == "the operator has not seen the job yet"
    assert state(Job(job(phase="Levitating"))) == AppState.UNKNOWN


class TestResponse:
    def test_description_has_replicas_and_metadata(self) -> None:
        status: dict[str, Any] = {
            "phase": "Running",
            "restarts": 3,
            "progress": {"percent": 7, "samples": 21_000, "totalSamples": 300_000},
            "budget": {"limit": 0.1, "spent": 0.00123, "remaining": 0.09877, "rollbacks": 1},
            "trainers": [{"index": 0, "state": "Training", "host": "10.0.0.1"}],
            "shards": [{"index": 0, "state": "Lost"}, {"index": 1, "state": "Odd"}],
        }
        found = response("default:quickstart", Job(job(**status)))
        assert (found.app_id, found.num_restarts) == ("default:quickstart", 3)
        assert found.msg == "Running, 7% trained, budget 0.00123 of 0.1 spent"
        assert found.metadata == {
            "phase": "Running",
            "progress.percent": "7",
            "progress.samples": "21000",
            "progress.totalSamples": "300000",
            "budget.limit": "0.1",
            "budget.spent": "0.00123",
            "budget.remaining": "0.09877",
            "budget.rollbacks": "1",
            "restarts": "3",
        }
        replicas = {
            each.role: [(one.id, one.state, one.hostname) for one in each.replicas] for each in found.roles_statuses
        }
        assert replicas["trainer"] == [(0, AppState.RUNNING, "10.0.0.1")]
        assert replicas["shard"] == [(0, AppState.PENDING, ""), (1, AppState.UNKNOWN, "")]
        assert [(role.name, role.num_replicas) for role in found.roles] == [("trainer", 1), ("shard", 2)]

    def test_metadata_are_fields_of_the_status(self) -> None:
        for path in METADATA_FIELDS:
            node = structural(Status, defaults=False)
            for part in path.split("."):
                node = node["properties"][part]

    def test_replicas_of_an_ended_job_have_its_state(self) -> None:
        found = response("a:b", Job(job(phase="Failed", shards=[{"index": 0, "state": "Ready"}])))
        assert found.roles_statuses[1].replicas[0].state == AppState.FAILED

    def test_message_has_conditions_that_are_a_problem(self) -> None:
        conditions = [
            condition("PodsReady", "False", "shard/1: ErrImagePull"),
            condition("ReportsAvailable", "True", "fine"),
            condition("BudgetAtRisk", "True"),
            condition("SnapshotsDegraded", "False", "fine"),
        ]
        found = response("a:b", Job(job(phase="Starting", conditions=conditions)))
        assert found.msg == "Starting; PodsReady: shard/1: ErrImagePull; BudgetAtRisk: Because"

    def test_message_of_an_end_has_only_its_condition(self) -> None:
        conditions = [condition("PodsReady", "False", "no pods"), condition("Failed", "True", "bad data")]
        assert response("a:b", Job(job(phase="Failed", conditions=conditions))).msg == "Failed; Failed: bad data"
