"""Containers that their kubelet begins again: which clusters do, and whether one that ended is about to come back."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.cluster.kubernetes import has_restart_rules
from cpr_operator.cluster.views import ContainerView, pod_view
from cpr_operator.failures import Failure, Kind, classify

OOM = ("OOMKilled", 137)
RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [134, 137, 139]}}]


def ended(reason: str, code: int, lasted_s: int = 20) -> dict[str, Any]:
    end = f"2026-01-01T00:{lasted_s // 60:02}:{lasted_s % 60:02}Z"
    return {"exitCode": code, "reason": reason, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": end}


def pod(
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
    "ended": pod({"terminated": ended(*OOM)}),
    "killed": pod({"terminated": ended("Error", 137)}),
    "faulted": pod({"terminated": ended("Error", 139)}),
    "waits to begin": pod({"waiting": {"reason": "ContainerCreating"}}, {"terminated": ended(*OOM)}),
    "again, after ten minutes": pod({"terminated": ended(*OOM, lasted_s=600)}, restarts=1),
}
LOST = {
    "without rules, as where the server dropped them": pod({"terminated": ended(*OOM)}, rules=None),
    "an older kubelet": pod({"terminated": ended(*OOM)}, phase="Failed"),
    "a code without a rule": pod({"terminated": ended("Error", 1)}),
    "deleted": pod({"terminated": ended("Error", 137)}, deletionTimestamp="2026-01-01T00:01:00Z"),
    "a second time": pod({"terminated": ended(*OOM, lasted_s=599)}, restarts=1),
    "in the kubelet's backoff": pod(
        {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": ended(*OOM)}, restarts=1
    ),
    "in the kubelet's backoff, long after": pod(
        {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": ended(*OOM, lasted_s=900)}, restarts=2
    ),
}


@pytest.mark.parametrize("name", COMING_BACK)
def test_a_container_that_begins_again_at_once_is_waited_for(name: str) -> None:
    view = pod_view(COMING_BACK[name])
    assert view.container is not None
    assert view.container.kind == "Restarting"
    assert not view.ended
    assert classify(view) is None


@pytest.mark.parametrize("name", LOST)
def test_any_other_is_lost(name: str) -> None:
    assert isinstance(classify(pod_view(LOST[name])), Failure)


def test_one_that_came_back_runs_and_tells_how_it_ended() -> None:
    view = pod_view(pod({"running": {}}, {"terminated": ended(*OOM)}, restarts=1))
    assert view.container == ContainerView("Running")
    assert view.last_end == ContainerView("Terminated", "OOMKilled", "", 137)
    assert view.restarts == 1
    assert classify(view) is None


def test_the_second_end_says_what_it_was() -> None:
    found = classify(pod_view(LOST["in the kubelet's backoff"]))
    assert isinstance(found, Failure)
    assert (found.kind, found.exit_code) == (Kind.OOM_KILLED, 137)


@pytest.mark.parametrize(
    ("major", "minor", "has"),
    [
        ("1", "34", False),
        ("1", "34+", False),
        ("1", "35", True),
        ("1", "35+", True),
        ("1", "36.2", True),
        ("2", "0", True),
    ],
)
def test_servers_have_restart_rules_from_1_35_on(major: str, minor: str, *, has: bool) -> None:
    assert has_restart_rules({"major": major, "minor": minor}) is has


@pytest.mark.parametrize("version", [{}, {"major": "", "minor": ""}, {"major": "one", "minor": "many"}])
def test_a_server_that_does_not_tell_has_none(version: dict[str, str]) -> None:
    assert not has_restart_rules(version)
