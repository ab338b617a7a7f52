"""Jobs of the end-to-end tests: a small DLRM on real Criteo rows, and what every one of its runs must satisfy."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cluster.harness import Pod, Space, Store, until
from cluster.harness.pods import TRAINER_IMAGE
from cluster.harness.space import Role
from cluster.harness.store import BUCKET, ENDPOINT, SECRET

Member = tuple[Role, int]
DATA_KEY = "data/criteo_80k.tsv.gz"
EPOCHS = 1
#: More than any test trains: for jobs that meet faults and are stopped afterwards. It needs no store to be read.
ENDLESS: dict[str, Any] = {"format": "Synthetic", "samples": 20_000_000, "batchSize": 128, "seed": 1}
TABLES, ROWS_PER_TABLE = 26, 5000
TRAINERS, SHARDS = 2, 3
FINAL = {"Succeeded", "Failed"}
#: A save only at the end: a shard that dies has lost all that was trained, however fast that was.
NO_SAVES = {"mode": "Fixed", "seconds": 3600}
#: A job that may lose nothing, with replay.
LOSSLESS: dict[str, Any] = {
    "accuracyBudget": {"portionOfLostSamples": 0},
    "recovery": {"replay": {"mode": "Auto", "memory": "64Mi"}},
}


def manifest(name: str, **changes: Any) -> dict[str, Any]:
    """Return a CPRJob without replay, so that a lost shard loses something.

    `changes` replace whole fields of its spec, but for that, `a__b` reaching below `a`. With `recovery=None` it has no
    field `recovery`, for a release without replay.
    """
    spec: dict[str, Any] = {
        "image": TRAINER_IMAGE,
        "accuracyBudget": {"portionOfLostSamples": 0.3},
        "model": {
            "embeddingDim": 8,
            "bottomMlp": [32, 8],
            "topMlp": [32, 1],
            "tables": [{"name": f"c{t + 1}", "rows": ROWS_PER_TABLE} for t in range(TABLES)],
            "denseOptimizer": {"kind": "SGD", "learningRate": 0.1},
            "sparseOptimizer": {"kind": "RowWiseAdagrad", "learningRate": 0.05},
        },
        "data": {"format": "Criteo", "uri": f"s3://{BUCKET}/{DATA_KEY}", "epochs": EPOCHS, "batchSize": 128, "seed": 1},
        "trainers": {"replicas": TRAINERS, "template": pod_template()},
        "shards": {"replicas": SHARDS, "template": pod_template()},
        "snapshots": {
            "store": {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": SECRET},
            "interval": {"mode": "Fixed", "seconds": 1},
            "denseIntervalSeconds": 5,
        },
    }
    for path, value in changes.items():
        *above, last = path.split("__")
        place = spec
        for part in above:
            place = place[part]
        place[last] = value
    recovery = spec.pop("recovery", {})
    if recovery is not None:
        spec["recovery"] = {"replay": {"mode": "Off"}} | recovery
    return {"apiVersion": "cprjob.io/v1alpha1", "kind": "CPRJob", "metadata": {"name": name}, "spec": spec}


def pod_template(
    node: str | None = None, *, apart: str | None = None, unstable: bool = False, restarted: bool = False
) -> dict[str, Any]:
    """Return a pod template with small requests, of pods that end with their containers, unless they are `restarted`.

    `node` pins the pods, `apart` spreads a job's pods of that role over nodes, `unstable` keeps them off the node that
    carries the operator and the store.
    """
    resources = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    threads = {"name": "OMP_NUM_THREADS", "value": "1"}  # five processes share the two cores of a small machine
    main: dict[str, Any] = {"name": "main", "resources": resources, "env": [threads]}
    if not restarted:
        main["restartPolicy"] = "Never"
    spec: dict[str, Any] = {"containers": [main]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    affinity: dict[str, Any] = {}
    if apart:
        term = {
            "labelSelector": {"matchLabels": {"cprjob.io/role": apart}},
            "matchLabelKeys": ["cprjob.io/job"],  # pods of the job before may still be ending
            "topologyKey": "kubernetes.io/hostname",
        }
        weighted = [{"weight": 100, "podAffinityTerm": term}]
        affinity["podAntiAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": weighted}
    if unstable:
        terms = [{"matchExpressions": [{"key": "cprjob.io/stable", "operator": "DoesNotExist"}]}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"spec": spec | ({"affinity": affinity} if affinity else {})}


@dataclass
class Run:
    """One applied job, followed to its end."""

    space: Space
    name: str
    before: dict[Member, str] = field(default_factory=dict)  # the uids of all members when training was seen

    @classmethod
    def start(cls, space: Space, name: str, **changes: Any) -> "Run":
        """Apply the job and wait until it trains with all its pods, or has trained: a short one may be over by then.

        It reads the leader's report, not the status, which is some seconds late: by then a quiet machine is half
        through an epoch.
        """
        space.apply(manifest(name, **changes))
        run = cls(space, name)
        run.wait("runs", lambda status: status.get("phase") in {"Running", "Succeeded"}, within_s=150)
        run.before = run.uids()
        until(f"{name} trains", run._began, 180)
        return run

    @classmethod
    def endless(cls, space: Space, name: str, **changes: Any) -> "Run":
        """Start a job of one trainer and two shards that trains until it is stopped."""
        return cls.start(space, name, **{"data": ENDLESS, "trainers__replicas": 1, "shards__replicas": 2} | changes)

    def status(self) -> dict[str, Any]:
        """Return the job's status."""
        found: dict[str, Any] = self.space.job(self.name).get("status", {})
        return found

    def pod(self, role: Role, index: int) -> Pod:
        """Return the pod of a member's newest incarnation; it must have one."""
        pod = self.find(role, index)
        assert pod is not None, f"{role}/{index} has no pod"
        return pod

    def find(self, role: Role, index: int) -> Pod | None:
        """Return the pod of a member's newest incarnation; None while it has none."""
        return max(self.space.pods(job=self.name, role=role, index=index), key=lambda p: p.incarnation, default=None)

    def uids(self) -> dict[Member, str]:
        """Return the uid of each member's pod, as the operator has it."""
        return uids(self.status())

    def report(self, role: Role, index: int) -> dict[str, Any] | None:
        """Return a member's own report, None if it does not answer."""
        pod = self.find(role, index)
        return None if pod is None else self.space.report(pod)

    def wait_for_report(self, role: Role, index: int) -> dict[str, Any]:
        """Return a member's own report, as soon as it answers."""
        found: dict[str, Any] = until(f"{role}/{index} of {self.name} answers", lambda: self.report(role, index), 120)
        return found

    def leader(self) -> int:
        """Return the rank that leads."""
        return int(self.status()["leader"])

    def reach(self, fraction: float, within_s: float = 180) -> None:
        """Wait until the leader reports that fraction of the data as trained."""

        def there() -> bool:
            report = self.leader_report()
            total = report.get("total_samples", 0)
            return bool(total and report["samples"] >= fraction * total)

        until(f"{self.name} has trained {fraction:.0%}", there, within_s)

    def trained(self) -> int:
        """Return how many samples the leader has trained, by its own report."""
        return int(until(f"{self.name}'s leader reports", lambda: self.leader_report() or None, 120)["samples"])

    def train_on(self, within_s: float = 60) -> None:
        """Wait until more is trained than now."""
        now = self.trained()
        until(f"{self.name} trains on", lambda: self.leader_report().get("samples", 0) > now, within_s)

    def _began(self) -> bool:
        return bool(self.leader_report().get("samples")) or self.status()["phase"] == "Succeeded"

    def leader_report(self) -> dict[str, Any]:
        """Return the leader's own report, an empty one if it does not answer."""
        return self.report("trainer", self.leader()) or {}

    def wait(self, what: str, holds: Callable[[dict[str, Any]], bool], within_s: float = 60) -> dict[str, Any]:
        """Wait until the predicate holds for the status; return it."""
        try:
            job = self.space.wait_job(self.name, what, lambda job: holds(job.get("status", {})), within_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self._brief()}") from None
        return dict(job["status"])

    def _brief(self) -> str:
        """Return the job in one line, for a message without the log: each member's restarts and report."""
        status = self.status()
        members = []
        roles: tuple[Role, ...] = ("shard", "trainer")
        for role in roles:
            for member in status.get(f"{role}s", []):
                report = self.report(role, member["index"]) or {}
                restarts = f"{member.get('lives', 0)} lives, reports {report.get('lives')}"
                members.append(f"{role}/{member['index']}-{member['incarnation']} {member['state']}, {restarts}")
        return f"{status.get('phase')}, recovery {status.get('recovery')}, {'; '.join(members)}"

    def recover_from(
        self, what: str, fault: Callable[[], object], failures: int = 1
    ) -> list[tuple[str, int, int, str]]:
        """Inject a fault and wait until training continues with all members.

        Returns the failures that it was recorded as: role, index, incarnation, kind.
        """
        before = len(self.status().get("failures", []))
        fault()

        def passed(status: dict[str, Any]) -> bool:
            all_recorded = len(status.get("failures", [])) >= before + failures
            return all_recorded and status.get("recovery") is None and status.get("phase") == "Running"

        return kinds(self.wait(f"is over {what}", passed, within_s=180)["failures"][before:])

    def slow_down(self) -> None:
        """Leave each trainer a twentieth of a core: waiting for what the cluster does takes no more."""
        self._limit_trainers("50m")

    def speed_up(self) -> None:
        """Let the trainers that were slowed down train on as fast as they can."""
        self._limit_trainers("2")

    def _limit_trainers(self, cpu: str) -> None:
        limits = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": cpu}}}]}}
        for pod in self.space.pods(job=self.name, role="trainer"):
            self.space.kubectl("patch", "pod", pod.name, "--subresource=resize", "-p", json.dumps(limits))

    def stop(self) -> dict[str, Any]:
        """Suspend the job; the newest anchor of the returned status holds all that it has trained."""
        self.space.patch(self.name, '{"spec":{"suspend":true}}')
        status = self.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=180)
        assert {member["savedSamples"] for member in status["shards"]} == {status["anchors"][-1]["samples"]}
        return status

    def resume(self) -> dict[str, Any]:
        """Resume the job without pods; return the status once it trains with all its members."""
        until(f"no pod of {self.name} is left", lambda: not self.space.pods(job=self.name), 120)
        self.space.patch(self.name, '{"spec":{"suspend":false}}')
        status = self.wait("trains again", lambda status: status.get("phase") == "Running", within_s=180)
        self.before = uids(status)
        return status

    def uid(self) -> str:
        """Return the uid of the resource, which its objects' keys in the store begin with."""
        return str(self.space.job(self.name)["metadata"]["uid"])

    def delete(self) -> None:
        """Delete the resource, without waiting until it is gone."""
        self.space.kubectl("delete", "cprjob", self.name, "--wait=false")

    def wait_until_deleted(self, within_s: float = 180) -> None:
        """Wait until the resource is gone, with its finalizer."""

        def deleted() -> bool:
            return not self.space.kubectl("get", "cprjob", self.name, "--ignore-not-found")

        until(f"{self.name} is gone", deleted, within_s, every_s=0.5)

    def finish(self, within_s: float = 150) -> dict[str, Any]:
        """Wait for the end and return the status; the job must have succeeded."""
        status = self.wait("ends", lambda status: status.get("phase") in FINAL, within_s)
        assert status["phase"] == "Succeeded", status.get("conditions")
        return status


def verify(run: Run, status: dict[str, Any], replaced: Iterable[Member]) -> None:
    """Check the end of a run: all samples are trained, and `verify_members` holds."""
    assert status["progress"]["samples"] == status["progress"]["totalSamples"]
    verify_members(run, status, replaced)


def verify_members(run: Run, status: dict[str, Any], replaced: Iterable[Member]) -> None:
    """Check a run after a fault: other pods untouched, the budget kept, no reservation left, the time accounted."""
    replaced, budget = set(replaced), status["budget"]
    after = uids(status)
    assert {member for member in after if after[member] != run.before[member]} == replaced
    assert budget["spent"] <= budget["limit"]
    assert budget["reserved"] == 0
    verify_time(status)


def verify_time(status: dict[str, Any]) -> None:
    """Check that the parts of the job's time add up to the wall time, to the millisecond."""
    goodput = status["goodput"]
    parts = {"productive": goodput["productiveSeconds"], **goodput["lost"]}
    assert min(parts.values()) >= 0, parts
    assert sum(round(1000 * seconds) for seconds in parts.values()) == round(1000 * goodput["wallSeconds"]), parts


def verify_stopped(run: Run, store: Store, replaced: Iterable[Member]) -> dict[str, Any]:
    """Call `verify_members`, then stop the job: its ledger must equal its manifests. Return the status."""
    verify_members(run, run.status(), replaced)
    status = run.stop()
    assert ledger(status) == account(store, status)
    return status


def uids(status: dict[str, Any]) -> dict[Member, str]:
    """Return the uid of each member's newest pod."""
    return {(role, m["index"]): m["uid"] for role in ("shard", "trainer") for m in status[f"{role}s"]}


def account(store: Store, status: dict[str, Any]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return each shard's lost ranges by the manifests of the result, or of a stopped job's newest anchor."""
    newest = status.get("result") or status["anchors"][-1]
    anchor = json.loads(store.get(newest["key"]))
    shards = [json.loads(store.get(ref["key"])) for ref in anchor["shards"]]
    return {shard["index"]: tuple(tuple(r) for r in shard["lost"]) for shard in shards}


def ledger(status: dict[str, Any]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return each shard's lost ranges as the operator has them."""
    ranges = status["ledger"]["ranges"] or [()] * len(status["shards"])
    return {index: tuple(tuple(r) for r in shard) for index, shard in enumerate(ranges)}


def failures(status: dict[str, Any]) -> list[tuple[str, int, int, str]]:
    """Return the recorded failures as (role, index, incarnation, kind)."""
    return kinds(status.get("failures", []))


def kinds(recorded: Iterable[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    """Return recorded failures as (role, index, incarnation, kind)."""
    return [(f["role"], f["index"], f["incarnation"], f["kind"]) for f in recorded]
