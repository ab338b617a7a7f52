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
    FREE,
    HINDERS,
    NOBODY,
    Cost,
    Fault,
    Hit,
    NotNowError,
    Target,
    during,
    fault,
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
    return NOBODY


@contextmanager
def _hung(target: Target, random: Random) -> Iterator[None]:
    pod = _minio(target)
    target.cluster.nodes.signal(pod, "STOP")
    try:
        yield
    finally:
        target.cluster.nodes.signal(pod, "CONT")


@contextmanager
def _full(target: Target, random: Random) -> Iterator[None]:
    surely(lambda: target.cluster.store.limit(1), 20)
    try:
        yield
    finally:
        surely(lambda: target.cluster.store.limit(0))


@contextmanager
def _refused(target: Target, random: Random) -> Iterator[None]:
    user = target.user
    surely(lambda: target.cluster.store.remove_user(user[0]), 20)
    try:
        yield
    finally:
        surely(lambda: target.cluster.store.add_user(*user))


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
    everything = ["*"]
    rules = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": account, "namespace": NAMESPACE}}],
        "resourceRules": [
            {
                "verbs": everything,
                "apiGroups": everything,
                "resources": everything,
                "clusterScope": True,
                "namespaces": everything,
            }
        ],
    }
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "cprjob-storm"},
        "spec": {
            "priorityLevelConfiguration": {"name": "cprjob-storm"},
            "matchingPrecedence": 2,
            "rules": [rules],
        },
    }


@contextmanager
def _too_many_requests(target: Target, random: Random) -> Iterator[None]:
    kubectl = target.cluster.kubectl
    surely(lambda: kubectl.apply(LEVEL), 20)
    surely(lambda: kubectl.apply(_schema("cprjob")), 20)
    try:
        yield
    finally:
        for kind in ("flowschema", "prioritylevelconfiguration"):
            surely(lambda kind=kind: kubectl("delete", kind, "cprjob-storm", "--ignore-not-found"))


@contextmanager
def _unavailable(target: Target, random: Random) -> Iterator[None]:
    """The API server thinks that another one serves CPRJobs, and finds none: 503. It makes the entry anew by itself."""
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
    return NOBODY


STORE: tuple[Fault, ...] = (
    fault(
        "store",
        "the store is down",
        during(lambda w, _: w.cluster.store_down()),
        HINDERS,
        takes={"store"},
        holds_s=HELD_S,
    ),
    fault("store", "the store is killed", once(_killed), HINDERS, takes={"store"}),
    fault("store", "the store hangs", during(_hung), HINDERS, takes={"store"}, holds_s=HELD_S),
    fault(
        "store",
        "the store is slow",
        during(lambda w, _: w.cluster.nodes.dozing(_minio(w))),
        HINDERS,
        takes={"store"},
        holds_s=HELD_S,
        bare=True,
    ),
    fault("store", "the store is full", during(_full), HINDERS, takes={"store"}, holds_s=HELD_S),
    fault("store", "the store refuses the credentials", during(_refused), HINDERS, takes={"store"}, holds_s=HELD_S),
    fault(
        "store",
        "the store is cut off",
        during(lambda w, _: w.cluster.nodes.fault("shut", "open", 1, 9000)),
        HINDERS,
        takes={"store"},
        holds_s=HELD_S,
        bare=True,
    ),
    fault(
        "store",
        "an object is damaged",
        during(lambda w, r: _harmed(w, r, stores.Store.corrupt)),
        DAMAGES,
        takes={"store"},
        holds_s=HELD_S,
    ),
    fault(
        "store",
        "an object is missing",
        during(lambda w, r: _harmed(w, r, stores.Store.delete)),
        DAMAGES,
        takes={"store"},
        holds_s=HELD_S,
    ),
)


def _api(name: str, inject: Any, holds_s: tuple[float, float] = (5, 20)) -> Fault:
    return fault("API server", name, inject, FREE, takes={"api"}, holds_s=holds_s, bare=True)


API: tuple[Fault, ...] = (
    _api("the API server is down", during(lambda w, _: w.control.down("apiserver"))),
    _api("the API server hangs", during(lambda w, _: w.control.frozen("apiserver"))),
    _api("the API server is slow", during(lambda w, _: w.control.dozing("apiserver"))),
    _api("the API server answers the operator 429", during(_too_many_requests)),
    _api("the API server answers 503 for jobs", during(_unavailable)),
    _api("etcd stands still", during(lambda w, _: w.control.frozen("etcd"))),
    _api("etcd is killed", during(lambda w, _: w.control.down("etcd")), (0, 5)),
    _api("the history of watches is lost", once(_forgotten), (0, 0)),
    _api("the scheduler is dead", during(lambda w, _: w.control.down("scheduler"))),
    _api("the controller manager is dead", during(lambda w, _: w.control.down("controller-manager"))),
)
