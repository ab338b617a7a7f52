"""The manifests that the operator creates, in full or as a difference from another one.

`CPR_UPDATE_GOLDEN=1` writes the files: read what git shows.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_contract import CONTRACT_VERSION
from cpr_contract.choices import ReplayPolicy
from cpr_contract.roster import Counters, ShardRoster, TrainerRoster
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.api.validate import parse_spec
from cpr_operator.desired.job_objects import IngressSources, disruption_budgets, key_secret, network_policy
from cpr_operator.desired.names import JobId, key_secret_name, spare_name
from cpr_operator.desired.pod import PodPlan, pod_manifest, spare_manifest
from cpr_operator.desired.rosters import Document
from cpr_operator.desired.store_pod import cleanup_pod, recorder_pod, tool_pod
from simulation.control_plane.workload import spec

GOLDEN = Path(__file__).parent / "golden"
JOB = JobId("research", "criteo", "0a1b2c3d-0000-4000-8000-000000000000")
COUNTERS = Counters(roster=7, group=2, generation=1)

DIGEST = "9f9f5111f7b27a78"

SHARD = Document.of(
    ShardRoster(
        contract=CONTRACT_VERSION,
        counters=COUNTERS,
        index=3,
        incarnation=2,
        newest_incarnation=2,
        may_restore=True,
        floor_samples=900,
        anchor=None,
        trainers=2,
    )
)
TRAINER = Document.of(
    TrainerRoster(
        contract=CONTRACT_VERSION,
        counters=COUNTERS,
        index=0,
        incarnation=1,
        newest_incarnation=1,
        leader=0,
        trainers=(),
        shards=(),
        anchor=None,
        dense_floor_samples=0,
        interval_s=60.0,
    )
)
TEMPLATE: Mapping[str, Any] = {
    "metadata": {"labels": {"team": "ads", "cprjob.io/job": "another"}, "annotations": {"note": "mine"}},
    "spec": {
        "nodeSelector": {"disk": "fast"},
        "restartPolicy": "Always",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "criteo"}}],
        "containers": [
            {
                "name": "main",
                "image": "mine:2",
                "env": [{"name": "OMP_NUM_THREADS", "value": "4"}, {"name": "CPR_SPEC", "value": "{}"}],
                "resources": {"requests": {"cpu": "4"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "sidecar", "image": "log:1"},
        ],
    },
}


#: The tool's pod has only the resources of the main container of this template.
SHARD_TEMPLATE: Mapping[str, Any] = {
    "spec": {
        "nodeSelector": {"memory": "much"},
        "containers": [{"name": "main", "resources": {"limits": {"memory": "64Gi"}}}],
    },
}


#: The operator's restart rules replace those of this template.
RESTARTED: Mapping[str, Any] = {
    "spec": {"containers": [{"name": "main", "restartPolicy": "Always", "restartPolicyRules": [{"action": "None"}]}]},
}


#: A trainer's pod adds the memory of pushes to that of this template.
SIZED_TEMPLATE: Mapping[str, Any] = {
    "spec": {
        "containers": [
            {"name": "log", "resources": {"limits": {"memory": "64Mi"}}},
            {"name": "main", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
        ]
    },
}


#: A spare has the affinity and priority of this template.
APART: Mapping[str, Any] = {
    "spec": {
        "priorityClassName": "members",
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}
                ]
            }
        },
    }
}


def plan(**changes: Any) -> PodPlan:
    return PodPlan(
        JOB, parse_spec(spec(**changes)), image="trainer:1", job_spec='{"contract":1}', grace_s=30, key_digest=DIGEST
    )


def replaying(**changes: Any) -> PodPlan:
    """A plan of a job with 256 MiB of buffered pushes per trainer."""
    made = plan(**changes)
    return replace(made, replay=ReplayPolicy(256 << 20, reason="asked for"))


def spilling(**changes: Any) -> PodPlan:
    """The same, and 4 GiB on disk."""
    return replace(plan(**changes), replay=ReplayPolicy(256 << 20, 4 << 30, "asked for"))


def job_objects(*, by_uid: bool) -> list[Mapping[str, Any]]:
    """The objects of two trainers and four shards, without the key."""
    status = Status(trainers=tuple(Trainer(index=i) for i in range(2)), shards=tuple(Shard(index=i) for i in range(4)))
    sources = IngressSources("operators", ({"namespaceSelector": {"matchLabels": {"team": "monitoring"}}},))
    return [network_policy(JOB, sources, by_uid=by_uid), *disruption_budgets(JOB, status, by_uid=by_uid)]


#: Data in another store than the saves.
LAKE: Mapping[str, Any] = {
    "snapshots__store__credentialsSecret": "minio",
    "data__store__endpoint": "https://lake.example",
    "data__store__credentialsSecret": "lake",
    "data__store__caBundle": {"name": "lake-ca"},
    "data__format": "Criteo",
    "data__uri": "s3://clicks/day",
}


CASES: dict[str, Callable[[], Any]] = {
    "shard": lambda: pod_manifest(plan(), SHARD),
    "shard-that-is-restarted": lambda: pod_manifest(
        replace(plan(shards__template=RESTARTED), restart_rules=True), SHARD
    ),
    "spare": lambda: spare_manifest(plan(shards__sparePriorityClassName="spares"), spare_name(JOB, 4)),
    "spare-with-template": lambda: spare_manifest(plan(shards__template=APART), spare_name(JOB, 4)),
    "trainer": lambda: pod_manifest(plan(), TRAINER),
    "trainer-with-template": lambda: pod_manifest(plan(trainers__template=TEMPLATE), TRAINER),
    "trainer-that-replays": lambda: pod_manifest(replaying(trainers__template=SIZED_TEMPLATE), TRAINER),
    "trainer-that-spills": lambda: pod_manifest(spilling(trainers__template=SIZED_TEMPLATE), TRAINER),
    "shard-with-secrets": lambda: pod_manifest(
        plan(snapshots__store__credentialsSecret="minio", snapshots__store__caBundle={"name": "ca", "key": "ca.pem"}),
        SHARD,
    ),
    "trainer-with-secrets": lambda: pod_manifest(plan(**LAKE), TRAINER),
    "cleanup": lambda: cleanup_pod(plan(), 1, ()),
    "cleanup-with-template": lambda: cleanup_pod(
        plan(trainers__template=TEMPLATE, snapshots__store__credentialsSecret="minio"), 3, ("uid/a", "uid/b")
    ),
    "cleanup-with-history": lambda: cleanup_pod(
        plan(snapshots__deleteWithJob=True, snapshots__keepHistory=True), 1, (), "record"
    ),
    "recorder": lambda: recorder_pod(plan(), 1, "record"),
    "tool": lambda: tool_pod(plan(), "abc123"),
    "tool-with-template": lambda: tool_pod(
        plan(trainers__template=TEMPLATE, shards__template=SHARD_TEMPLATE, snapshots__store__credentialsSecret="minio"),
        "abc123",
    ),
    "job-objects": lambda: job_objects(by_uid=True),
    "job-objects-of-0.1.0": lambda: job_objects(by_uid=False),
    "policy-of-an-operator-outside": lambda: network_policy(JOB, None, by_uid=True),
    "key": lambda: key_secret(JOB, "0123456789abcdef", DIGEST),
}


#: Cases that are written down as their difference from another one.
VARIANT_OF = {
    "shard-that-is-restarted": "shard",
    "shard-with-secrets": "shard",
    "spare": "shard",
    "spare-with-template": "spare",
    "trainer-with-template": "trainer",
    "trainer-that-replays": "trainer",
    "trainer-that-spills": "trainer-that-replays",
    "trainer-with-secrets": "trainer",
    "cleanup-with-template": "cleanup",
    "cleanup-with-history": "cleanup",
    "recorder": "cleanup",
    "tool": "cleanup",
    "tool-with-template": "tool",
    "job-objects-of-0.1.0": "job-objects",
}


def manifest(name: str) -> str:
    """The case's manifest as text."""
    return yaml.safe_dump(CASES[name](), sort_keys=True, width=120)


def difference(name: str, base: str) -> str:
    """The case's manifest as a difference from another one's. Line numbers are left out: they change with the base."""
    lines = unified_diff(manifest(base).splitlines(), manifest(name).splitlines(), lineterm="", n=2)
    return "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in islice(lines, 2, None))


@pytest.mark.parametrize("name", CASES)
def test_manifests_are_as_written_down(name: str) -> None:
    base = VARIANT_OF.get(name)
    made = difference(name, base) if base else manifest(name)
    path = GOLDEN / f"{name}.{'diff' if base else 'yaml'}"
    if os.environ.get("CPR_UPDATE_GOLDEN"):
        path.write_text(made, "utf-8")
    assert made == path.read_text("utf-8")


def test_only_pods_that_read_data_have_access_to_its_store() -> None:
    with_lake = plan(**LAKE)
    pods = {
        "trainer": pod_manifest(with_lake, TRAINER),
        "tool": tool_pod(with_lake, "abc123"),
        "shard": pod_manifest(with_lake, SHARD),
        "spare": spare_manifest(with_lake, "spare"),
        "cleanup": cleanup_pod(with_lake, 1, ()),
    }
    secrets = {
        name: {each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each}
        - {key_secret_name(JOB, DIGEST)}
        for name, pod in pods.items()
    }
    assert secrets["trainer"] == secrets["tool"] == {"minio", "lake", "lake-ca"}
    assert secrets["shard"] == secrets["spare"] == secrets["cleanup"] == {"minio"}


def memory_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The memory of each container: what it requests, and its limit."""
    return {
        container["name"]: tuple(container["resources"].get(kind, {}).get("memory") for kind in ("requests", "limits"))
        for container in pod["spec"]["containers"]
    }


def test_a_trainer_has_the_memory_of_its_template_and_that_of_the_pushes_it_keeps() -> None:
    assert memory_of(CASES["trainer-that-replays"]()) == {"log": (None, "64Mi"), "main": ("1280Mi", "2304Mi")}
    assert memory_of(pod_manifest(replaying(), TRAINER)) == {"main": ("2304Mi", "2304Mi")}
    nothing = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]}}
    assert memory_of(pod_manifest(replaying(trainers__template=nothing), TRAINER)) == {"main": (None, None)}
    assert memory_of(pod_manifest(replaying(), SHARD)) == {"main": ("2Gi", "2Gi")}, "shards keep no pushes"


def disk_of(pod: Mapping[str, Any]) -> tuple[str | None, ...]:
    """The disk of the main container: what it requests, and its limit."""
    (main,) = [each for each in pod["spec"]["containers"] if each["name"] == "main"]
    return tuple(main["resources"].get(kind, {}).get("ephemeral-storage") for kind in ("requests", "limits"))


def test_a_trainer_requests_the_disk_that_it_spills_pushes_to() -> None:
    def stated(**resources: Any) -> Mapping[str, Any]:
        return pod_manifest(
            spilling(trainers__template={"spec": {"containers": [{"name": "main", "resources": resources}]}}), TRAINER
        )

    disk = "ephemeral-storage"
    assert disk_of(CASES["trainer-that-spills"]()) == ("4Gi", None)
    assert disk_of(pod_manifest(spilling(), TRAINER)) == ("4Gi", None)
    assert disk_of(stated(requests={disk: "1Gi"}, limits={disk: "2Gi"})) == ("5Gi", "6Gi")
    assert disk_of(stated(limits={disk: "2Gi", "memory": "1Gi"})) == (None, "6Gi"), "requests are as limits, then"
    assert disk_of(pod_manifest(spilling(), SHARD)) == (None, None), "shards keep no pushes"


def test_trainers_and_pods_of_older_clusters_are_not_restarted() -> None:
    for pod in (pod_manifest(replace(plan(), restart_rules=True), TRAINER), pod_manifest(plan(), SHARD)):
        (main,) = pod["spec"]["containers"]
        assert not {"restartPolicy", "restartPolicyRules"} & set(main)
        assert "cprjob-memory" not in {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize("stated", [{"restartPolicy": "Always"}, {"restartPolicyRules": [{"action": "Restart"}]}])
def test_template_cannot_enable_restarts_by_the_kubelet(stated: dict[str, Any]) -> None:
    sidecar = {"name": "sidecar", "restartPolicy": "Always"}
    template = {"spec": {"containers": [{"name": "main", **stated}, sidecar]}}
    pod = pod_manifest(replace(plan(trainers__template=template), restart_rules=True), TRAINER)
    main, other = pod["spec"]["containers"]
    assert not {"restartPolicy", "restartPolicyRules"} & set(main)
    assert other == sidecar


def test_template_may_disable_restarts_of_containers() -> None:
    never = {"spec": {"containers": [{"name": "main", "restartPolicy": "Never"}]}}
    pod = pod_manifest(replace(plan(shards__template=never), restart_rules=True), SHARD)
    assert "restartPolicyRules" not in pod["spec"]["containers"][0]
    assert "cprjob-memory" not in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_a_spare_is_restarted_as_the_shard_that_it_may_become() -> None:
    pods = (spare_manifest(replace(plan(), restart_rules=True), "spare-1"), CASES["shard-that-is-restarted"]())
    spare, shard = (pod["spec"]["containers"][0]["restartPolicyRules"] for pod in pods)
    assert spare == shard


def test_the_template_itself_is_left_as_it_is() -> None:
    before = yaml.safe_dump(TEMPLATE)
    CASES["trainer-with-template"]()
    assert yaml.safe_dump(TEMPLATE) == before


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ELSEWHERE = {"key": "metadata.name", "operator": "NotIn", "values": ["node-7"]}


def required_terms(pod: Mapping[str, Any]) -> Any:
    return pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


def test_a_pod_keeps_off_a_node_if_it_has_to() -> None:
    assert required_terms(pod_manifest(plan(), SHARD, avoid="node-7")) == [{"matchFields": [ELSEWHERE]}]
    assert "affinity" not in pod_manifest(plan(), SHARD)["spec"]


def test_a_pod_keeps_off_a_node_under_every_alternative_of_its_template() -> None:
    fast = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
    mine = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    preferred = [{"weight": 1, "preference": fast}]
    of_nodes = {
        REQUIRED: {"nodeSelectorTerms": [fast, mine]},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    own = {"spec": {"affinity": {"nodeAffinity": of_nodes, "podAntiAffinity": {}}}}
    pod = pod_manifest(plan(shards__template=own), SHARD, avoid="node-7")
    assert required_terms(pod) == [
        {**fast, "matchFields": [ELSEWHERE]},
        {"matchFields": [*mine["matchFields"], ELSEWHERE]},
    ]
    assert pod["spec"]["affinity"]["podAntiAffinity"] == {}
    assert pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
