from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.cluster.kubernetes import has_restart_rules
from cpr_operator.cluster.views import BlockingContainer, ContainerView, job_view, pod_view
from cpr_operator.failures import Failure, Kind, Trouble, classify

LABELS = {
    "cprjob.io/job": "j",
    "cprjob.io/role": "shard",
    "cprjob.io/index": "3",
    "cprjob.io/incarnation": "2",
}


def pod(status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u", "labels": LABELS, **meta}, "spec": {}, "status": status}


def with_container(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    sidecar = {"name": "sidecar", "state": {"terminated": {"exitCode": 1}}}
    return pod({"containerStatuses": [sidecar, {"name": "main", "state": state, "lastState": last or {}}]})


@pytest.mark.parametrize(
    ("raw", "container"),
    [
        (with_container({"running": {"startedAt": "2026-01-01T00:00:00Z"}}), ContainerView("Running")),
        (
            with_container({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            ContainerView("Waiting", "ErrImagePull", "no such image"),
        ),
        (
            with_container({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "m"}}),
            ContainerView("Terminated", "OOMKilled", "m", 137),
        ),
        (
            with_container({"waiting": {}}, {"terminated": {"exitCode": 0, "reason": "OOMKilled"}}),
            ContainerView("Terminated", "OOMKilled", "", 0),
        ),
        (pod({"containerStatuses": [{"name": "sidecar", "state": {"running": {}}}]}), None),
        (pod({"phase": "Failed", "reason": "Evicted"}), None),
        (pod({}), None),
    ],
)
def test_the_main_container_is_found_by_name(raw: dict[str, Any], container: ContainerView | None) -> None:
    assert pod_view(raw).container == container


def test_labels_identify_a_pod() -> None:
    view = pod_view(pod({}, annotations={"cprjob.io/roster-version": "7"}))
    assert (view.role, view.index, view.incarnation, view.roster_version) == ("shard", 3, 2, 7)
    view = pod_view({"metadata": {"name": "p", "uid": "u", "labels": {"cprjob.io/index": "x"}}})
    assert (view.role, view.index, view.incarnation, view.roster_version) == ("", -1, -1, -1)
    assert (view.phase, view.owner_uid, view.host) == ("Pending", "", "")


def test_only_the_controlling_job_owns_a_pod() -> None:
    owners = [
        {"kind": "CPRJob", "uid": "watching"},
        {"kind": "ReplicaSet", "uid": "other", "controller": True},
        {"kind": "CPRJob", "uid": "ours", "controller": True},
    ]
    assert pod_view(pod({}, ownerReferences=owners)).owner_uid == "ours"


def test_conditions_count_only_in_the_state_that_means_trouble() -> None:
    def conditions(disrupted: str, scheduled: str) -> list[dict[str, str]]:
        return [
            {"type": "DisruptionTarget", "status": disrupted, "reason": "EvictionByEvictionAPI"},
            {"type": "PodScheduled", "status": scheduled, "message": "0/3 nodes are available"},
        ]

    bad = pod_view(pod({"conditions": conditions("True", "False")}))
    assert (bad.disruption, bad.unschedulable) == ("EvictionByEvictionAPI", "0/3 nodes are available")
    good = pod_view(pod({"conditions": conditions("False", "True")}))
    assert (good.disruption, good.unschedulable) == ("", "")


def test_a_deletion_has_an_end_and_a_grace_and_ports_follow_the_environment() -> None:
    view = pod_view(pod({}, deletionTimestamp="1970-01-01T00:01:40Z", deletionGracePeriodSeconds=30))
    assert (view.deleting_until, view.deletion_grace_s) == (100.0, 30)
    raw = pod({})
    assert (pod_view(raw).deleting_until, pod_view(raw).port_base) == (None, 7070)
    raw["spec"] = {"containers": [{"name": "main", "env": [{"name": "CPR_PORT_BASE", "value": "21000"}]}]}
    assert pod_view(raw).port_base == 21000


def test_a_job_without_spec_and_status_is_a_view_too() -> None:
    meta = {
        "name": "j",
        "namespace": "n",
        "uid": "u",
        "resourceVersion": "5",
        "creationTimestamp": "1970-01-01T00:00:09Z",
    }
    view = job_view({"metadata": meta})
    assert (view.spec_generation, view.created, view.deleting, view.spec, view.status) == (0, 9.0, False, {}, {})
    assert job_view({"metadata": {**meta, "deletionTimestamp": "1970-01-01T00:00:10Z"}}).deleting


STARTS = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
PULLS = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


@pytest.mark.parametrize(
    ("status", "blocking", "message"),
    [
        (
            {
                "initContainerStatuses": [
                    {"name": "fetch", "state": BACK_OFF, "lastState": {"terminated": {"exitCode": 2}}}
                ]
            },
            BlockingContainer("fetch", "CrashLoopBackOff", "back-off 40s", 2),
            "container fetch: back-off 40s (it ended with exit code 2)",
        ),
        (
            {"initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}]},
            BlockingContainer("fetch", "Error", "", 2),
            "container fetch: Error (it ended with exit code 2)",
        ),
        (
            {"containerStatuses": [STARTS, {"name": "log", "state": PULLS}]},
            BlockingContainer("log", "ImagePullBackOff", "no such image"),
            "container log: no such image",
        ),
        ({"initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 0}}}]}, None, ""),
        ({"containerStatuses": [STARTS, {"name": "log", "state": {"terminated": {"exitCode": 1}}}]}, None, ""),
        (
            {"containerStatuses": [STARTS, {"name": "log", "state": {"waiting": {"reason": "PodInitializing"}}}]},
            None,
            "",
        ),
    ],
)
def test_another_container_that_keeps_a_pod_from_starting_is_named(
    status: dict[str, Any], blocking: BlockingContainer | None, message: str
) -> None:
    raw = pod({"containerStatuses": [STARTS], "phase": "Pending"} | status)
    view = pod_view(raw)
    assert view.blocking_container == blocking
    found = classify(view)
    assert (found is None) is (blocking is None)
    assert not isinstance(found, Trouble) or (found.reason, found.message) == (blocking and blocking.reason, message)
    failed = classify(pod_view(raw | {"status": raw["status"] | {"phase": "Failed"}}))
    assert isinstance(failed, Failure)
    assert failed.message == (message or "the pod failed"), "as of an init container that is not tried again"


def test_a_scheduling_gate_is_no_lack_of_capacity() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates are not empty"}
    raw = pod({"phase": "Pending", "conditions": [gated]})
    raw["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    view = pod_view(raw)
    assert (view.gates, view.unschedulable) == (("example.com/quota",), "")
    found = classify(view)
    assert isinstance(found, Trouble)
    assert (found.reason, "example.com/quota" in found.message) == ("SchedulingGated", True)


OOM = ("OOMKilled", 137)
RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [134, 137, 139]}}]


def ended(reason: str, code: int, lasted_s: int = 20) -> dict[str, Any]:
    end = f"2026-01-01T00:{lasted_s // 60:02}:{lasted_s % 60:02}Z"
    return {"exitCode": code, "reason": reason, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": end}


def shard_pod(
    state: dict[str, Any],
    last: dict[str, Any] | None = None,
    *,
    restarts: int = 0,
    rules: list[dict[str, Any]] | None = RULES,
    phase: str = "Running",
    **meta: Any,
) -> dict[str, Any]:
    main = {"name": "main", "state": state, "lastState": last or {}, "restartCount": restarts}
    sidecar = {"name": "sidecar", "state": {"running": {}}, "restartCount": 9}
    return {
        "metadata": {"name": "p", "uid": "u", "labels": {"cprjob.io/role": "shard"}, **meta},
        "spec": {
            "containers": [{"name": "sidecar"}, {"name": "main", **({"restartPolicyRules": rules} if rules else {})}]
        },
        "status": {"phase": phase, "containerStatuses": [sidecar, main]},
    }


COMING_BACK = {
    "ended": shard_pod({"terminated": ended(*OOM)}),
    "killed": shard_pod({"terminated": ended("Error", 137)}),
    "faulted": shard_pod({"terminated": ended("Error", 139)}),
    "waits to begin": shard_pod({"waiting": {"reason": "ContainerCreating"}}, {"terminated": ended(*OOM)}),
    "again, after ten minutes": shard_pod({"terminated": ended(*OOM, lasted_s=600)}, restarts=1),
}
LOST = {
    "without rules, as where the server dropped them": shard_pod({"terminated": ended(*OOM)}, rules=None),
    "an older kubelet": shard_pod({"terminated": ended(*OOM)}, phase="Failed"),
    "a code without a rule": shard_pod({"terminated": ended("Error", 1)}),
    "deleted": shard_pod({"terminated": ended("Error", 137)}, deletionTimestamp="2026-01-01T00:01:00Z"),
    "a second time": shard_pod({"terminated": ended(*OOM, lasted_s=599)}, restarts=1),
    "in the kubelet's backoff": shard_pod(
        {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": ended(*OOM)}, restarts=1
    ),
    "in the kubelet's backoff, long after": shard_pod(
        {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": ended(*OOM, lasted_s=900)}, restarts=2
    ),
}


@pytest.mark.parametrize("name", COMING_BACK)
def test_container_that_restarts_at_once_is_waited_for(name: str) -> None:
    view = pod_view(COMING_BACK[name])
    assert view.container is not None
    assert view.container.kind == "Restarting"
    assert not view.ended
    assert classify(view) is None


@pytest.mark.parametrize("name", LOST)
def test_container_without_a_restart_is_lost(name: str) -> None:
    assert isinstance(classify(pod_view(LOST[name])), Failure)


def test_restarted_container_runs_and_has_its_last_end() -> None:
    view = pod_view(shard_pod({"running": {}}, {"terminated": ended(*OOM)}, restarts=1))
    assert view.container == ContainerView("Running")
    assert view.last_end == ContainerView("Terminated", "OOMKilled", "", 137)
    assert view.restarts == 1
    assert classify(view) is None


def test_second_end_has_its_reason() -> None:
    found = classify(pod_view(LOST["in the kubelet's backoff"]))
    assert isinstance(found, Failure)
    assert (found.kind, found.exit_code) == (Kind.OOM_KILLED, 137)


def test_servers_have_restart_rules_from_1_35_on() -> None:
    has, lacks = ("1.35", "1.35+", "1.36.2", "2.0"), ("1.34", "1.34+", ".", "one.many")
    versions = [dict(zip(("major", "minor"), each.split(".", 1), strict=True)) for each in (*has, *lacks)]
    assert [has_restart_rules(version) for version in (*versions, {})] == [True] * len(has) + [False] * 5
