"""The jobs of a storm: one of each guarantee at a time. When one ends, the next one of its guarantee begins."""

from dataclasses import dataclass, field
from typing import Any

from cluster.harness import until
from cluster.harness.space import condition
from cluster.harness.store import BUCKET, ENDPOINT
from cluster.jobs import FINAL, Run, account, pod_template
from simulation.real_cluster.checker import Guarantee, Look, at_the_end
from simulation.real_cluster.failpoints.fault import Target, surely
from simulation.real_cluster.failpoints.operations import CREDENTIALS

#: A job trains for several rounds.
EPOCHS = 20
SETTLED_S, FINISHED_S = 300, 900
NOTHING = {"portionOfLostSamples": 0}
REPLAY = {"mode": "Auto", "memory": "128Mi"}
KINDS: dict[str, dict[str, Any]] = {
    "partial": {"trainers__replicas": 2, "shards__replicas": 3},
    "replay": {
        "trainers__replicas": 2,
        "shards__replicas": 2,
        "accuracyBudget": NOTHING,
        "recovery": {"replay": REPLAY},
    },
    "parity": {
        "trainers__replicas": 1,
        "shards__replicas": 3,
        "accuracyBudget": NOTHING,
        "recovery": {"replay": REPLAY, "redundancy": {"dataShards": 1}},
    },
}


def _changes(kind: str) -> dict[str, Any]:
    return KINDS[kind] | {
        "trainers__template": pod_template(apart="trainer"),
        "shards__template": pod_template(apart="shard"),
        "data__epochs": EPOCHS,
        "snapshots__store": {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": CREDENTIALS},
        "snapshots__interval": {"mode": "Fixed", "seconds": 3},
        # A storm injects more failures than the default limits of users allow.
        "failurePolicy": {"restartLimit": {"count": 1000}, "startupDeadlineSeconds": 1800},
    }


@dataclass
class Job:
    """One of the storm's jobs: its kind, the number of jobs of that kind before it, and its limits."""

    target: Target
    kind: str
    number: int
    run: Run = field(init=False)
    guarantee: Guarantee = field(init=False)

    def start(self) -> None:
        """Apply it, and wait until it trains."""
        self.guarantee = Guarantee(lossless=_changes(self.kind).get("accuracyBudget") == NOTHING)
        self.run = Run.start(self.target.space, f"{self.kind}-{self.number}", **_changes(self.kind))
        self.target.runs[self.run.name] = self.run

    def look(self) -> Look:
        """Return how it is now."""
        job = surely(lambda: self.target.space.job(self.run.name))
        return Look(job["metadata"]["uid"], job.get("status", {}))

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self.look().status.get("phase") in FINAL

    def settle(self) -> Look:
        """Wait until it has ended, or trains on with all members, while saves work; raise TimeoutError."""

        def whole() -> Look | None:
            look = self.look()
            status = look.status
            if status.get("phase") in FINAL:
                return look
            members = [*status.get("shards", ()), *status.get("trainers", ())]
            saves = condition({"status": status}, "SnapshotsDegraded").get("status") != "True"
            is_quiet = status.get("phase") == "Running" and not status.get("recovery")
            there = bool(members) and all(member.get("uid") for member in members)
            return look if is_quiet and saves and there and not status["budget"]["reserved"] else None

        begun = until(f"{self.run.name} is whole", whole, SETTLED_S, every_s=1)
        trained = begun.status["progress"]["samples"]

        def further() -> Look | None:
            look = whole()
            ended = look is not None and look.status["phase"] in FINAL
            return look if look is not None and (ended or look.status["progress"]["samples"] > trained) else None

        return until(f"{self.run.name} trains on", further, SETTLED_S, every_s=1)

    def finish(self) -> None:
        """Wait until it ends; raise TimeoutError."""
        until(f"{self.run.name} ends", lambda: self.ended, FINISHED_S, every_s=2)

    def judge(self) -> list[str]:
        """Return what is wrong with the job, which has ended."""
        job = surely(lambda: self.target.space.job(self.run.name))
        status = job["status"]
        missed = account(self.target.cluster.store, status) if status["phase"] == "Succeeded" else {}
        return at_the_end(self.guarantee, job, missed)

    def leave(self) -> None:
        """Delete the job and its saves."""
        del self.target.runs[self.run.name]
        uid = surely(self.run.uid)
        surely(self.run.delete)
        self.run.wait_until_deleted()
        surely(lambda: self.target.cluster.store.delete(f"{uid}/"))
