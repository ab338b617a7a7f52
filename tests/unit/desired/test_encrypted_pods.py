"""The pods of an encrypted job: the files, variables, probes and labels that they have in addition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.roster import Counters, ShardRoster
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.certificates import KeyPair
from cpr_operator.desired.job_objects import Certificates, key_secret
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan, pod_manifest, spare_manifest
from cpr_operator.desired.rosters import Document
from cpr_operator.desired.store_pod import cleanup_pod, publisher_pod, recorder_pod, tool_pod
from simulation.control_plane.workload import spec

JOB = JobId("research", "criteo", "0a1b2c3d-0000-4000-8000-000000000000")
PLAN = PodPlan(JOB, parse_spec(spec()), "trainer:1", '{"contract":1}', 30, key_digest="d1")
ROSTER = ShardRoster(
    contract=CONTRACT_VERSION,
    counters=Counters(roster=7, group=2, generation=1),
    index=3,
    incarnation=2,
    newest_incarnation=2,
    may_restore=True,
    floor_samples=900,
    anchor=None,
    trainers=2,
)
MAKERS: dict[str, Callable[[PodPlan], dict[str, Any]]] = {
    "shard": lambda plan: pod_manifest(plan, Document.of(ROSTER)),
    "spare": lambda plan: spare_manifest(plan, "spare-1"),
    "publisher": lambda plan: publisher_pod(plan, 1),
}


def both(role: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of an encrypted job, and that of another one."""
    return MAKERS[role](replace(PLAN, encrypted=True)), MAKERS[role](PLAN)


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    (main,) = pod["spec"]["containers"]
    assert isinstance(main, dict)
    return main


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    found = main_of(pod)["env"]
    assert len({each["name"] for each in found}) == len(found)
    return {each["name"]: each.get("value") for each in found}


@pytest.mark.parametrize("role", MAKERS)
def test_pods_with_a_port_have_certificates_and_a_label(role: str) -> None:
    encrypted, plain = both(role)
    assert (variables(encrypted)[env.ENCRYPTION], variables(encrypted)[env.KEY_DIGEST]) == ("TLS", "d1")
    assert variables(encrypted)[env.KEY_FILE] == f"{env.KEY_DIR}/{env.KEY_NAME}"
    volumes = {each["name"]: each for each in encrypted["spec"]["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in main_of(encrypted)["volumeMounts"]}
    assert volumes["cprjob-key"]["secret"] == {"secretName": "criteo-0a1b2-key-d1"}
    assert mounts["cprjob-key"] == env.KEY_DIR
    labels = encrypted["metadata"]["labels"]
    assert labels == plain["metadata"]["labels"] | {env.LABEL_ENCRYPTION: "TLS"}
    assert env.ENCRYPTION not in variables(plain)


@pytest.mark.parametrize("role", ["shard", "spare"])
def test_probes_use_tls(role: str) -> None:
    for pod, scheme in zip(both(role), ("HTTPS", None), strict=True):
        probes = [each["httpGet"] for name, each in main_of(pod).items() if name.endswith("Probe")]
        assert [each.get("scheme") for each in probes] == [scheme] * 3


def test_publisher_of_an_unencrypted_job_has_no_key() -> None:
    _, plain = both("publisher")
    assert env.KEY_FILE not in variables(plain)
    assert "cprjob-key" not in {each["name"] for each in plain["spec"]["volumes"]}


def test_pods_without_a_port_have_no_key_of_the_ca() -> None:
    encrypted = replace(PLAN, encrypted=True)
    assert tool_pod(encrypted, "a") == tool_pod(PLAN, "a")
    assert cleanup_pod(encrypted, 1, ()) == cleanup_pod(PLAN, 1, ())
    assert recorder_pod(encrypted, 1, "r") == recorder_pod(PLAN, 1, "r")


def test_secret_has_the_key_and_the_certificates() -> None:
    secret = key_secret(JOB, "key", "d1", Certificates(KeyPair("ca", "ca's key"), "operator"))
    named = {env.KEY_NAME: "key", env.CA_NAME: "ca", env.CA_KEY_NAME: "ca's key", env.OPERATOR_NAME: "operator"}
    assert secret == key_secret(JOB, "key", "d1") | {"stringData": named}


@pytest.mark.parametrize("role", MAKERS)
def test_pods_show_the_ca_that_an_issuer_renews_as_a_file(role: str) -> None:
    pod, before = (MAKERS[role](replace(PLAN, encrypted=True, issued_ca=ca)) for ca in ("CA and chain", ""))
    assert pod["metadata"]["annotations"][env.ANNOTATION_ISSUED_CA] == "CA and chain"
    path = variables(pod)[env.ISSUED_CA_FILE]
    (volume,) = [each for each in pod["spec"]["volumes"] if each not in before["spec"]["volumes"]]
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"] == {"fieldPath": f"metadata.annotations['{env.ANNOTATION_ISSUED_CA}']"}
    (mount,) = [each for each in main_of(pod)["volumeMounts"] if each["name"] == volume["name"]]
    assert path == f"{mount['mountPath']}/{item['path']}"
    assert env.ISSUED_CA_FILE not in variables(before)
