"""Parts of valid jobs without their apparent effect, and templates for other operators."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.api.status import Runtime, Status
from cpr_operator.api.validate import InvalidSpecError, parse_spec, validate
from cpr_operator.cluster.views import JobView
from cpr_operator.controller.job_reader import job_of
from cpr_operator.desired.advice import warnings
from support.documents import edited

SELECTOR = {"matchExpressions": [{"key": "replica-type", "operator": "In", "values": ["worker"]}]}
EFFECTIVE = {
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"key": "gpu"}],
    "nodeSelector": {"pool": "gpu"},
    "restartPolicy": "Never",
    "securityContext": {"fsGroup": 65532},
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
    "containers": [
        {
            "name": "main",
            "env": [{"name": "MINE", "value": "1"}],
            "resources": {"limits": {"memory": "8Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        {"name": "log", "image": "log", "command": ["log"], "restartPolicy": "Always"},
    ],
}


def main(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", **fields}]}


@pytest.mark.parametrize(
    ("template", "field", "remedy"),
    [
        (EFFECTIVE, "", ""),
        ({"restartPolicy": "OnFailure"}, "restartPolicy", "spec.failurePolicy.restartLimit"),
        ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds", "the time that its saves take"),
        ({"securityContext": {"runAsUser": 1000}}, "securityContext.runAsUser", "65532"),
        (main(args=["--epochs=2"]), "containers[main].args", "spec.model, spec.data"),
        (main(image="mine"), "containers[main].image", "spec.image"),
        (main(env=[{"name": "CPR_POD", "value": "x"}]), "containers[main].env[CPR_POD].value", "another name"),
        (main(terminationMessagePolicy="FallbackToLogsOnError"), "containers[main].terminationMessagePolicy", "sets"),
        (
            {"topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": SELECTOR}]},
            "topologySpreadConstraints[0].labelSelector.matchExpressions[0]",
            "cprjob.io/role",
        ),
        (
            {"affinity": {"podAffinity": {"x": [{"labelSelector": {"matchLabels": {"replica-index": "0"}}}]}}},
            "affinity.podAffinity.x[0].labelSelector",
            "cprjob.io/role",
        ),
        ({"hostNetwork": True}, "hostNetwork", "restrictTemplates"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["trainers", "shards"])
def test_ineffective_part_of_a_template_is_named_with_a_remedy(
    role: str, template: dict[str, Any], field: str, remedy: str
) -> None:
    document = edited({f"spec.{role}.template": {"spec": template}})
    assert validate(document) == ()
    found = warnings(parse_spec(document["spec"]))
    assert [each.field for each in found] == ([f"spec.{role}.template.spec.{field}"] if field else [])
    assert all(remedy in each.remedy for each in found)


@pytest.mark.parametrize(
    ("bucket", "valid"),
    [("ab", False), ("a.-b", False), ("a..b", False), ("10.0.0.1", False), ("xn--a", False), ("a-s3alias", False),
     ("abc", True), ("my.bucket-1", True)],
)  # fmt: skip
def test_bucket_that_amazon_refuses_is_named(bucket: str, *, valid: bool) -> None:
    edits = {"spec.snapshots.store.bucket": bucket, "spec.snapshots.store.endpoint": "https://s3.example"}
    found = warnings(parse_spec(edited(edits)["spec"]))
    assert [each.field for each in found] == ([] if valid else ["spec.snapshots.store.bucket"])
    folder = edits | {"spec.snapshots.store.endpoint": "file:///saves"}
    assert warnings(parse_spec(edited(folder)["spec"])) == ()


@pytest.mark.parametrize(
    ("containers", "field"),
    [
        ([{"name": "pytorch", "command": ["python", "train.py"]}], "containers"),
        ([{"name": "main", "command": ["/bin/sh", "-c"]}], "containers[0].command"),
        ([{"name": "log"}, {"name": "main", "command": "python"}], "containers[1].command"),
        (
            [{"name": "main", "command": ["bash", "-ec", "numactl -N 0 python3 -m cpr_trainer"]}],
            "containers[0].command",
        ),
        ([{"name": "main", "command": ["sh", "-c", 'exec python3 -m cpr_trainer "$0"']}], ""),
        ([{"name": "main", "command": ["sh", "-c", 'exec "$@"', "sh", "python3", "-m", "cpr_trainer"]}], ""),
        ([{"name": "main", "command": ["/app/entry.sh", "python3", "-m", "cpr_trainer"]}], ""),
        ([{"name": "main", "command": ["nice", "python3", "-m", "cpr_trainer"]}, {"name": "pytorch"}], ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("role", ["trainers", "shards"])
def test_template_of_another_operator_starts_no_job_and_stops_none(
    role: str, containers: list[dict[str, Any]], field: str
) -> None:
    document = edited({f"spec.{role}.template": {"spec": {"containers": containers}}})
    found = validate(document)
    assert [each.field for each in found] == ([f"spec.{role}.template.spec.{field}"] if field else [])
    runtime = Runtime(image="i", contract_version=1, template_hash="h", job_spec="{}")

    def view(status: Status) -> JobView:
        return JobView("ns", "job", "u", 1, "1", 0.0, deleting=False, spec=document["spec"], status=status.to_dict())

    assert job_of(view(Status(runtime=runtime))).status.runtime == runtime
    if field:
        with pytest.raises(InvalidSpecError, match=r"main|python3, -m, cpr_trainer"):
            job_of(view(Status()))
    else:
        job_of(view(Status()))
