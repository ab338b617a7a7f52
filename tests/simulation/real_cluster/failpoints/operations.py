"""Faults of the operator, and what users do to a job that trains."""

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
    ENDS,
    FREE,
    NOBODY,
    Cost,
    Fault,
    Hit,
    NotNowError,
    Target,
    during,
    ended,
    fault,
    once,
    surely,
)

CREDENTIALS = "storm-credentials"
SUSPENDED_S = 240
#: The job begins anew, and its predecessor's account with it.
ANEW = Cost(ends=True, touches=True)


# --- the operator ---


def _killed(target: Target, random: Random) -> Hit:
    surely(target.cluster.kill_operator, 20)
    return NOBODY


def _killed_often(target: Target, random: Random) -> Hit:
    """At three moments of whatever it does just then."""
    for _ in range(3):
        time.sleep(random.uniform(0, 4))
        surely(target.cluster.kill_operator, 20)
    return NOBODY


def _leader_killed(target: Target, random: Random) -> Hit:
    surely(lambda: target.cluster.nodes.signal(target.cluster.leader(), "KILL"), 20)
    return NOBODY


@contextmanager
def _leader_stopped(target: Target, random: Random) -> Iterator[None]:
    """When it goes on, another one leads, and for a moment both believe that they do."""
    leader = surely(target.cluster.leader, 40)
    target.cluster.nodes.signal(leader, "STOP")
    try:
        yield
    finally:
        if any(pod.container_id == leader.container_id for pod in surely(target.cluster.operator_pods)):
            target.cluster.nodes.signal(leader, "CONT")


def _lease_deleted(target: Target, random: Random) -> Hit:
    surely(lambda: target.cluster.kubectl("-n", NAMESPACE, "delete", "lease", DEPLOYMENT, "--ignore-not-found"), 20)
    return NOBODY


@contextmanager
def _gone(target: Target, random: Random) -> Iterator[None]:
    surely(target.cluster.stop_operator, 60)
    try:
        yield
    finally:
        surely(target.cluster.start_operator)


def _rolled(target: Target, random: Random) -> Hit:
    surely(lambda: target.cluster.kubectl("-n", NAMESPACE, "rollout", "restart", f"deployment/{DEPLOYMENT}"), 20)
    return NOBODY


def _operator(name: str, inject: Any, holds_s: tuple[float, float] = (0, 0), takes: tuple[str, ...] = ()) -> Fault:
    return fault("operator", name, inject, FREE, takes={"operator", *takes}, holds_s=holds_s)


OPERATOR: tuple[Fault, ...] = (
    _operator("the operator is killed", once(_killed)),
    _operator("the operator is killed three times", once(_killed_often)),
    _operator("the leading operator is killed", once(_leader_killed)),
    _operator("the leading operator is stopped, and goes on beside its heir", during(_leader_stopped), (20, 35)),
    _operator("the operator's lease is deleted", once(_lease_deleted)),
    _operator("the operator is away", during(_gone), (5, 20)),
    _operator("the operator is restarted, one replica after the other", once(_rolled)),
    # helm asks the API server for two minutes, so that has to be there
    _operator(
        "the operator is of the next version for a while",
        during(lambda w, _: w.cluster.newer_operator()),
        (5, 10),
        ("api",),
    ),
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
    """All members stop for it, and go on from an anchor."""
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
    return NOBODY


def _anew(target: Target, random: Random) -> Hit:
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
    """The Secret names a new user. The old one goes later, before the kubelets may have told all pods."""
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


@contextmanager
def _no_room(target: Target, random: Random) -> Iterator[None]:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "storm"},
        "spec": {"hard": {"pods": "0"}},
    }
    surely(lambda: target.space.apply(quota), 20)
    try:
        yield
    finally:
        surely(lambda: target.space.kubectl("delete", "resourcequota", "storm", "--ignore-not-found"))


USER: tuple[Fault, ...] = (
    fault("user", "a job is suspended and resumed", _suspended, ENDS, takes={"spec"}, holds_s=(5, 25)),
    fault("user", "a job gets other shards", _reshard, ENDS, takes={"spec"}),
    fault("user", "a job gets other trainers", once(_scale), ENDS, takes={"spec"}),
    fault("user", "a job has a spare for a while", during(_spare), FREE, takes={"spec"}, holds_s=(15, 30)),
    fault("user", "a budget is changed", once(_budget), FREE, takes={"spec"}),
    fault("user", "a job is deleted and applied anew", once(_anew), ANEW, takes={"spec"}),
    fault(
        "user", "the store's Secret is rotated", during(_rotated), Cost(hinders=True), takes={"store"}, holds_s=(20, 40)
    ),
    fault("user", "the namespace may have no more pods", during(_no_room), FREE, holds_s=(8, 20)),
)
