"""Faults of the object store and of the API server with its etcd."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from cluster.harness import Pod
from cluster.harness import store as stores
from cluster.harness.release import NAMESPACE
from simulation.real_cluster.failpoints.fault import (
    AT_ONCE,
    FREE,
    HINDERS,
    NO_MEMBER,
    Cost,
    Fault,
    Hit,
    Inject,
    NotNowError,
    Span,
    Target,
    during,
    held,
    once,
    surely,
)

HELD_S = (10.0, 30.0)
#: Damage is there until the next save that stands on none of it, so a job may find that nothing is left to go back to.
DAMAGES = Cost(kills=True, hinders=True, touches=False, refuses=frozenset({"Damaged"}))
APISERVICE = "v1alpha1.cprjob.io"


def _minio(target: Target) -> Pod:
    (pod,) = map(Pod.of, surely(lambda: target.cluster.reader.pods(stores.NAMESPACE, "app.kubernetes.io/name=minio")))
    return pod


def _killed(target: Target, random: Random) -> Hit:
    target.cluster.nodes.signal(_minio(target), "KILL")
    return NO_MEMBER


@contextmanager
def _hung(target: Target, random: Random) -> Iterator[None]:
    pod = _minio(target)
    target.cluster.nodes.signal(pod, "STOP")
    try:
        yield
    finally:
        target.cluster.nodes.signal(pod, "CONT")


def _part(target: Target, random: Random) -> str:
    """Draw an object of a save of a job that trains."""
    keys = [
        key
        for run in target.training()
        for key in surely(lambda run=run: target.cluster.store.keys(f"{run.uid()}/"), 20)
        if not key.endswith("origin.json")
    ]
    if not keys:
        raise NotNowError("a save")
    return random.choice(keys)


@contextmanager
def _harmed(target: Target, random: Random, harm: Callable[[stores.Store, str], object]) -> Iterator[None]:
    """Harm an object of a save, and put it back."""
    store, key = target.cluster.store, _part(target, random)
    before = surely(lambda: store.get(key), 20)
    surely(lambda: harm(store, key), 20)
    try:
        yield
    finally:
        surely(lambda: store.put(key, before))


#: Requests of the operator get no seat at all, and no queue.
LEVEL = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "PriorityLevelConfiguration",
    "metadata": {"name": "cprjob-storm"},
    "spec": {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "lendablePercent": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        },
    },
}


def _schema(account: str) -> dict[str, Any]:
    everything = {key: ["*"] for key in ("verbs", "apiGroups", "resources", "namespaces")}
    subject = {"kind": "ServiceAccount", "serviceAccount": {"name": account, "namespace": NAMESPACE}}
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "cprjob-storm"},
        "spec": {
            "priorityLevelConfiguration": {"name": "cprjob-storm"},
            "matchingPrecedence": 2,
            "rules": [{"subjects": [subject], "resourceRules": [everything | {"clusterScope": True}]}],
        },
    }


def _level(target: Target) -> None:
    target.cluster.kubectl.apply(LEVEL)
    target.cluster.kubectl.apply(_schema("cprjob"))


def _no_level(target: Target) -> None:
    for kind in ("flowschema", "prioritylevelconfiguration"):
        target.cluster.kubectl("delete", kind, "cprjob-storm", "--ignore-not-found")


@contextmanager
def _unavailable(target: Target, random: Random) -> Iterator[None]:
    """The API server thinks that another one serves CPRJobs, and finds none: 503. It restores the entry by itself."""
    kubectl = target.cluster.kubectl
    service = {"namespace": NAMESPACE, "name": "nobody", "port": 443}
    change = json.dumps({"spec": {"service": service, "insecureSkipTLSVerify": True}})
    surely(lambda: kubectl("label", "apiservice", APISERVICE, "kube-aggregator.kubernetes.io/automanaged-"), 20)
    surely(lambda: kubectl("patch", "apiservice", APISERVICE, "--type=merge", "-p", change), 20)
    try:
        yield
    finally:
        surely(lambda: kubectl("delete", "apiservice", APISERVICE, "--ignore-not-found"))
        surely(lambda: kubectl("get", "cprjobs", "-n", target.space.name))


def _forgotten(target: Target, random: Random) -> Hit:
    target.control.forget()
    return NO_MEMBER


def _store(name: str, inject: Inject, cost: Cost = HINDERS, *, holds_s: Span = HELD_S, bare: bool = False) -> Fault:
    return Fault("store", name, inject, cost, {"store"}, holds_s, bare)


STORE: tuple[Fault, ...] = (
    _store("the store is down", during(lambda t, _: t.cluster.store_down())),
    _store("the store is killed", once(_killed), holds_s=AT_ONCE),
    _store("the store hangs", during(_hung)),
    _store("the store is slow", during(lambda t, _: t.cluster.nodes.throttled(_minio(t))), bare=True),
    _store("the store is full", held(lambda t: t.cluster.store.limit(1), lambda t: t.cluster.store.limit(0))),
    _store(
        "the store refuses the credentials",
        held(lambda t: t.cluster.store.remove_user(t.user[0]), lambda t: t.cluster.store.add_user(*t.user)),
    ),
    _store("the store is cut off", during(lambda t, _: t.cluster.nodes.fault("shut", "open", 1, 9000)), bare=True),
    _store("an object is damaged", during(lambda t, r: _harmed(t, r, stores.Store.corrupt)), DAMAGES),
    _store("an object is missing", during(lambda t, r: _harmed(t, r, stores.Store.delete)), DAMAGES),
)


def _api(name: str, inject: Inject, holds_s: Span = (5, 20)) -> Fault:
    return Fault("API server", name, inject, FREE, {"api"}, holds_s, bare=True)


API: tuple[Fault, ...] = (
    _api("the API server is down", during(lambda t, _: t.control.down("apiserver"))),
    _api("the API server hangs", during(lambda t, _: t.control.frozen("apiserver"))),
    _api("the API server is slow", during(lambda t, _: t.control.throttled("apiserver"))),
    _api("the API server answers the operator 429", held(_level, _no_level)),
    _api("the API server answers 503 for jobs", during(_unavailable)),
    _api("etcd stands still", during(lambda t, _: t.control.frozen("etcd"))),
    _api("etcd is killed", during(lambda t, _: t.control.down("etcd")), (0, 5)),
    _api("the history of watches is lost", once(_forgotten), AT_ONCE),
    _api("the scheduler is dead", during(lambda t, _: t.control.down("scheduler"))),
    _api("the controller manager is dead", during(lambda t, _: t.control.down("controller-manager"))),
)
