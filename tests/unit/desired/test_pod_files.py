"""A pod's name, grace and places, and its description of the job: in a variable, or in a file if it is long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract import env
from cpr_contract.codec import pack
from cpr_operator.api.validate import parse_spec
from cpr_operator.desired.names import JobId, pod_name
from cpr_operator.desired.pod import PodPlan, grace_s, pod_manifest, spare_manifest
from cpr_operator.desired.rosters import Document
from cpr_operator.desired.store_pod import tool_pod
from support.documents import minimal

LONG = pack('{"contract":1,"names":"' + 40_000 * "x" + '"}')
PLAN = PodPlan(JobId("ns", "job", "uid"), parse_spec(minimal()["spec"]), image="trainer:1", job_spec=LONG, grace_s=30)


def pod_of(plan: PodPlan, kind: str) -> dict[str, object]:
    if kind == "tool":
        return tool_pod(plan, "x")
    if kind == "spare":
        return spare_manifest(plan, "job-spare-1")
    return pod_manifest(plan, Document("trainer", 0, 1, 7, "{}"))


@pytest.mark.parametrize("kind", ["trainer", "spare", "tool"])
def test_a_long_description_is_an_annotation_that_a_file_shows_and_a_short_one_a_variable(kind: str) -> None:
    pod = pod_of(PLAN, kind)
    metadata, spec = pod["metadata"], pod["spec"]
    (main,) = spec["containers"]  # type: ignore[index]
    variables = {each["name"]: each.get("value") for each in main["env"]}
    assert env.SPEC not in variables
    assert variables[env.SPEC_FILE] == "/etc/cprjob/spec/job"
    assert metadata["annotations"][env.ANNOTATION_SPEC] == LONG  # type: ignore[index]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "cprjob-spec")  # type: ignore[index]
    (item,) = volume["downwardAPI"]["items"]
    assert item == {"path": "job", "fieldRef": {"fieldPath": "metadata.annotations['cprjob.io/job-spec']"}}
    (mount,) = (each for each in main["volumeMounts"] if each["name"] == "cprjob-spec")
    assert mount == {"name": "cprjob-spec", "mountPath": "/etc/cprjob/spec", "readOnly": True}
    (main,) = pod_of(replace(PLAN, job_spec="{}"), kind)["spec"]["containers"]  # type: ignore[index]
    short = {each["name"]: each.get("value") for each in main["env"]}
    assert (short[env.SPEC], env.SPEC_FILE in short) == ("{}", False), "images of any release read it"
    assert "cprjob-spec" not in str(main)


def test_a_name_carries_role_index_and_incarnation_and_five_characters_of_the_uid() -> None:
    assert pod_name(JobId("ns", "criteo", "0a1b2c3d-4"), "shard", 3, 2) == "criteo-0a1b2-shard-3-2"
    assert len(pod_name(JobId("ns", "x" * 40, "0a1b2c3d"), "trainer", 255, 9999)) <= 63, "it fits a label"


def test_grace_is_twice_the_expected_flush_and_never_below_30_s() -> None:
    assert [grace_s(value) for value in (None, 3.0, 40.0)] == [30, 30, 80]


@pytest.mark.parametrize(("redundancy", "keys"), [(None, ["hostname"]), ({"dataShards": 1}, ["hostname", "zone"])])
def test_shards_spread_over_nodes_and_with_parity_over_zones(redundancy: object, keys: list[str]) -> None:
    spec = minimal()["spec"] | {"recovery": {"redundancy": redundancy}}
    spec["shards"] = {"replicas": 2}
    plan = replace(PLAN, spec=parse_spec(spec))
    pod = pod_manifest(plan, Document("shard", 0, 1, 7, "{}"))
    spread = pod["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"].rpartition("/")[2] for each in spread] == keys
    assert {each["whenUnsatisfiable"] for each in spread} == {"ScheduleAnyway"}
    stated = [{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}]
    spec["shards"] |= {"template": {"spec": {"topologySpreadConstraints": stated}}}
    pod = pod_manifest(replace(PLAN, spec=parse_spec(spec)), Document("shard", 0, 1, 7, "{}"))
    assert pod["spec"]["topologySpreadConstraints"] == stated
