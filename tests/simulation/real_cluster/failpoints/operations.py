"""Faults of the operator, and actions of users on a job that trains."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from cluster.harness.cluster import DEPLOYMENT
from cluster.harness.release import NAMESPACE
from cluster.jobs import Run
from simulation.real_cluster.failpoints.fault import (
    AT_ONCE,
    ENDS,
    FREE,
    NO_MEMBER,
    Cost,
    Fault,
    Hit,
    Inject,
    NotNowError,
    Span,
    Target,
    during,
    ended,
    held,
    once,
    surely,
)

CREDENTIALS = "storm-credentials"
SUSPENDED_S = 240
#: A new job begins, with an account of its own.
RECREATED = Cost(ends=True, touches=True)


# --- the operator ---


def _killed(target: Target, random: Random) -> Hit:
    surely(target.cluster.kill_operator, 20)
    return NO_MEMBER


def _killed_often(target: Target, random: Random) -> Hit:
    """At three moments of whatever it does just then."""
    for _ in range(3):
        time.sleep(random.uniform(0, 4))
        surely(target.cluster.kill_operator, 20)
    return NO_MEMBER


def _elected_killed(target: Target, random: Random) -> Hit:
    surely(lambda: target.cluster.nodes.signal(target.cluster.elected_operator(), "KILL"), 20)
    return NO_MEMBER


@contextmanager
def _elected_stopped(target: Target, random: Random) -> Iterator[None]:
    """When it continues, another one is elected, and for a moment both act as elected."""
    elected_operator = surely(target.cluster.elected_operator, 40)
    target.cluster.nodes.signal(elected_operator, "STOP")
    try:
        yield
    finally:
        if any(pod.container_id == elected_operator.container_id for pod in surely(target.cluster.operator_pods)):
            target.cluster.nodes.signal(elected_operator, "CONT")


def _lease_deleted(target: Target, random: Random) -> Hit:
    surely(lambda: target.cluster.kubectl("-n", NAMESPACE, "delete", "lease", DEPLOYMENT, "--ignore-not-found"), 20)
    return NO_MEMBER


def _rolled(target: Target, random: Random) -> Hit:
    surely(lambda: target.cluster.kubectl("-n", NAMESPACE, "rollout", "restart", f"deployment/{DEPLOYMENT}"), 20)
    return NO_MEMBER


def _operator(name: str, inject: Inject, holds_s: Span = AT_ONCE, *takes: str) -> Fault:
    return Fault("operator", name, inject, FREE, {"operator", *takes}, holds_s)


_without_operator = held(lambda t: t.cluster.stop_operator(), lambda t: t.cluster.start_operator(), within_s=60)
_newer = during(lambda t, _: t.cluster.newer_operator())
OPERATOR: tuple[Fault, ...] = (
    _operator("the operator is killed", once(_killed)),
    _operator("the operator is killed three times", once(_killed_often)),
    _operator("the elected operator is killed", once(_elected_killed)),
    _operator(
        "the elected operator is stopped, and continues after its successor was elected",
        during(_elected_stopped),
        (20, 35),
    ),
    _operator("the operator's lease is deleted", once(_lease_deleted)),
    _operator("the operator is away", _without_operator, (5, 20)),
    _operator("the operator is restarted, one replica after the other", once(_rolled)),
    # helm polls the API server for two minutes, so it has to be available
    _operator("the operator is of the next version for a while", _newer, (5, 10), "api"),
)


# --- users ---


def _any_run(target: Target, random: Random) -> Run:
    return random.choice(target.training())


def _patch(run: Run, change: dict[str, Any]) -> None:
    surely(lambda: run.space.patch(run.name, json.dumps({"spec": change})))


def _wait_suspended(run: Run) -> None:
    """Wait until the job has no pod; raise NotNowError if it ended before."""
    deadline = time.monotonic() + SUSPENDED_S
    while surely(run.status).get("phase") != "Suspended":
        if ended(run):
            raise NotNowError("a job that trains")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{run.name} is not suspended within {SUSPENDED_S} s")
        time.sleep(0.5)


@contextmanager
def _suspended(target: Target, random: Random) -> Iterator[Hit]:
    run = _any_run(target, random)
    hit = target.all_of(run.name)
    _patch(run, {"suspend": True})
    try:
        yield hit
    finally:
        _patch(run, {"suspend": False})


@contextmanager
def _reshard(target: Target, random: Random) -> Iterator[Hit]:
    run = _any_run(target, random)
    hit, now = target.all_of(run.name), len(surely(run.status)["shards"])
    _patch(run, {"suspend": True})
    try:
        _wait_suspended(run)
        _patch(run, {"shards": {"replicas": random.choice([n for n in (2, 3, 4) if n != now])}})
        yield hit
    finally:
        _patch(run, {"suspend": False})


def _scale(target: Target, random: Random) -> Hit:
    """All members stop for it, and continue from an anchor."""
    run = _any_run(target, random)
    hit, now = target.all_of(run.name), len(surely(run.status)["trainers"])
    _patch(run, {"trainers": {"replicas": random.choice([n for n in (1, 2, 3) if n != now])}})
    return hit


@contextmanager
def _spare(target: Target, random: Random) -> Iterator[None]:
    run = _any_run(target, random)
    _patch(run, {"shards": {"spares": 1}})
    try:
        yield
    finally:
        _patch(run, {"shards": {"spares": 0}})


def _budget(target: Target, random: Random) -> Hit:
    rich = [run for run in target.training() if float(surely(run.status)["budget"]["limit"]) > 0]
    if not rich:
        raise NotNowError("a job with a budget")
    _patch(random.choice(rich), {"accuracyBudget": {"portionOfLostSamples": round(random.uniform(0.4, 0.6), 2)}})
    return NO_MEMBER


def _recreate(target: Target, random: Random) -> Hit:
    """Delete a job and apply it again at once, while its pods still save."""
    run = _any_run(target, random)
    hit = target.all_of(run.name)
    job = surely(lambda: target.space.job(run.name))
    manifest = {key: job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": run.name}}
    manifest["spec"] |= {"suspend": False}
    surely(run.delete)

    def apply() -> None:
        if (
            there := run.space.kubectl(
                "get", "cprjob", run.name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"
            )
        ) == job["metadata"]["uid"]:
            raise RuntimeError(f"{run.name} is still there as {there}")
        run.space.apply(manifest)

    surely(apply)
    return hit


@contextmanager
def _rotated(target: Target, random: Random) -> Iterator[None]:
    """The Secret names a new user. The old one goes later, before the kubelets may have updated all pods."""
    old = target.user
    give_credentials(target)
    try:
        yield
    finally:
        surely(lambda: target.cluster.store.remove_user(old[0]))


def give_credentials(target: Target) -> None:
    """Make a new user of the store, and the jobs' Secret name it."""
    target.rotations += 1
    target.user = (f"storm-{target.rotations}", f"only-for-this-storm-{target.rotations}")
    surely(lambda: target.cluster.store.add_user(*target.user))
    coded = {
        key: base64.b64encode(value.encode()).decode()
        for key, value in zip(("accessKey", "secretKey"), target.user, strict=True)
    }
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CREDENTIALS}, "data": coded}
    surely(lambda: target.space.apply(manifest))


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "storm"},
    "spec": {"hard": {"pods": "0"}},
}
_without_capacity = held(
    lambda t: t.space.apply(QUOTA), lambda t: t.space.kubectl("delete", "resourcequota", "storm", "--ignore-not-found")
)


def _user(name: str, inject: Inject, cost: Cost, holds_s: Span = AT_ONCE, takes: str = "spec") -> Fault:
    return Fault("user", name, inject, cost, {takes} - {""}, holds_s)


USER: tuple[Fault, ...] = (
    _user("a job is suspended and resumed", _suspended, ENDS, (5, 25)),
    _user("a job gets other shards", _reshard, ENDS),
    _user("a job gets other trainers", once(_scale), ENDS),
    _user("a job has a spare for a while", during(_spare), FREE, (15, 30)),
    _user("a budget is changed", once(_budget), FREE),
    _user("a job is deleted and applied anew", once(_recreate), RECREATED),
    _user("the store's Secret is rotated", during(_rotated), Cost(hinders=True), (20, 40), takes="store"),
    _user("the namespace may have no more pods", _without_capacity, FREE, (8, 20), takes=""),
)
