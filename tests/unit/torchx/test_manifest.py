from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from torchx.specs import AppDef, Resource, Role

from cpr_operator.torchx.components import dlrm
from cpr_operator.torchx.manifest import SchedulerError, application, manifest

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
def test_the_manifest_of_every_example_is_the_example(path: Path) -> None:
    document = yaml.safe_load(path.read_text("utf-8"))
    again = manifest(dlrm(str(path)), None)
    for group in ("trainers", "shards"):  # their numbers are stated
        again["spec"][group] = {"replicas": again["spec"][group]["replicas"]} | document["spec"].get(group, {})
        assert again["spec"][group]["replicas"] >= 1
        document["spec"][group] = again["spec"][group]
    assert again == document


def test_the_roles_say_what_pods_ask_for() -> None:
    trainer, shard = dlrm(str(QUICKSTART)).roles
    assert (trainer.name, trainer.num_replicas, trainer.image) == ("trainer", 1, "cprjob-trainer:0.1.0")
    assert (shard.name, shard.num_replicas, shard.image) == ("shard", 2, "cprjob-trainer:0.1.0")
    assert trainer.resource == Resource(cpu=1, gpu=0, memMB=1024)
    assert (shard.max_retries, shard.retry_policy.value) == (10, "REPLICA")


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        ({}, Resource(cpu=1, gpu=0, memMB=2048)),  # what the operator gives
        ({"limits": {"cpu": "1500m", "memory": "3G", "nvidia.com/gpu": 2}}, Resource(cpu=2, gpu=2, memMB=2862)),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}, Resource(cpu=0, gpu=0, memMB=1024)),
        ({"requests": {"cpu": "many"}}, Resource(cpu=-1, gpu=0, memMB=0)),
    ],
)
def test_resources_are_those_of_the_main_container(resources: dict[str, Any], wanted: Resource) -> None:
    job = quickstart()
    containers = [{"name": "side", "resources": {"requests": {"cpu": "9"}}}, {"name": "main", "resources": resources}]
    job["spec"]["trainers"]["template"]["spec"]["containers"] = containers
    assert application(job).get_role("trainer").resource == wanted


def test_arguments_go_before_the_file() -> None:
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


def test_a_file_with_wrong_fields_or_without_a_job_names_them(tmp_path: Path) -> None:
    wrong = quickstart()
    wrong["spec"]["data"]["batchSize"] = "many"
    wrong["spec"]["modle"] = {}
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(wrong), "utf-8")
    with pytest.raises(SchedulerError, match="did you mean model") as told:
        dlrm(str(file))
    assert "spec.data.batchSize" in str(told.value)
    for text, says in (("", "contains 0 CPRJobs"), ("7", "is not an object")):
        file.write_text(text, "utf-8")
        with pytest.raises(SchedulerError, match=says):
            dlrm(str(file), name="any")


def test_an_application_that_cannot_be_a_job_is_refused_in_one_line() -> None:
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
