"""Two jobs and quota for one, with Kueue's own controller: the one that is preempted loses nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.kueue import kueue
from cluster.harness.space import condition
from cluster.jobs import SOME_EPOCHS, Run, manifest, phase, same_auc
from support.kueue import queue_objects

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(1500, func_only=True)]

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
#: A job has five pods with 50m each.
QUOTA = "400m"


def queued(space: Space, name: str, *, urgent: bool = False, epochs: int = 1) -> Run:
    """Apply a job that stands in the queue."""
    job = manifest(name, data__epochs=epochs)
    job["metadata"]["labels"] = {QUEUE: "training"} | ({PRIORITY: "urgent"} if urgent else {})
    space.apply(job)
    return Run(space, name)


def quota(run: Run) -> str:
    """The status of the job's condition, and its reason."""
    said = condition(run.space.job(run.name), "QuotaReserved")
    return f"{said.get('status')} {said.get('reason')}"


def workloads(space: Space, field: str) -> list[str]:
    """This field of each Workload that has it."""
    query = '{range .items[*]}{FIELD}{"\\n"}{end}'.replace("FIELD", field)
    return space.kubectl("get", "workloads.kueue.x-k8s.io", "-o", f"jsonpath={query}").split()


class TestKueue:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def queues(cls, cluster: Cluster, space: Space) -> Iterator[None]:
        """Kueue, an operator that uses it, and a queue."""
        with kueue(cluster.kubectl), cluster.release.changed("kueue.enabled=true"):
            for each in queue_objects(space.name, QUOTA):
                space.apply(each)
            yield
            # Only an operator that uses Kueue lets Workloads go.
            space.kubectl("delete", "cprjobs", "--all")
            until("no Workload is left", lambda: not workloads(space, ".metadata.name"), 60)

    def test_a_preempted_job_resumes_with_all_that_it_had(self, space: Space, long_calm: dict[str, Any]) -> None:
        patient = queued(space, "patient", epochs=SOME_EPOCHS)
        patient.wait("trains", lambda status: status.get("phase") == "Running", within_s=240)
        assert quota(patient) == "True Admitted"
        (pod, *_) = space.pods(job="patient")
        selector = r"jsonpath={.spec.nodeSelector.kubernetes\.io/os}"
        assert space.kubectl("get", "pod", pod.name, "-o", selector) == "linux"
        second = queued(space, "second")
        until("the second job waits for quota", lambda: quota(second) == "False WaitsForQuota", 30)
        assert space.pods(job="second") == ()
        space.kubectl("delete", "cpr/second")

        patient.reach(0.2)
        urgent = queued(space, "urgent", urgent=True)
        suspended = patient.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=90)
        assert suspended["budget"]["spent"] == 0
        until("the urgent job has the quota", lambda: quota(urgent) == "True Admitted", 60)
        assert space.pods(job="patient") == ()
        assert quota(patient).startswith("False")

        space.wait_condition("urgent", "Complete", within_s=400)
        space.wait_condition("patient", "Complete", within_s=400)
        ended = patient.status()
        assert phase(space.job("patient")) == "Succeeded"
        assert ended["budget"]["spent"] == 0
        assert same_auc(ended, long_calm)
        assert any("Preempted" in message for reason, message in space.events("patient") if reason == "Suspending")

        finished = '.status.conditions[?(@.type=="Finished")].status'
        until("all are finished", lambda: workloads(space, finished) == ["True"] * 2, 60)

    def test_a_deleted_job_keeps_its_quota_until_its_pods_have_ended(self, space: Space) -> None:
        doomed = queued(space, "doomed", epochs=SOME_EPOCHS)
        doomed.wait("trains", lambda status: status.get("phase") == "Running", within_s=240)
        heir = queued(space, "heir")
        until("the heir waits for quota", lambda: quota(heir) == "False WaitsForQuota", 30)
        space.kubectl("delete", "cpr/doomed", "--wait=false")
        until("the heir has the quota", lambda: quota(heir) == "True Admitted", 90)
        assert {pod.phase for pod in space.pods(job="doomed")} <= {"Succeeded", "Failed"}
        space.wait_condition("heir", "Complete", within_s=400)
