"""PodGroups of jobs: the scheduler places all trainers and shards of a job at once, where the cluster has them."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.cluster.protocol import Manifest
from cpr_operator.controller.controller import Controller
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

TRAINERS, SHARDS = 2, 3


class GroupHarness(ControllerHarness):
    """A job with a spare on a cluster with PodGroups; `seen` has the groups that exist when each pod is created."""

    def __init__(self, *, has: bool = True, **changes: Any) -> None:
        super().__init__(spec(trainers__replicas=TRAINERS, shards__replicas=SHARDS, **changes), total=2_000_000)
        self.has, self.seen = has, list[tuple[Manifest, list[str]]]()
        place = self.cluster.place

        def created(manifest: Manifest) -> Any:
            self.seen.append((manifest, self.groups()))
            return place(manifest)

        self.cluster.place = created
        self.controller = Controller(self.cluster, lambda: self.cluster.now, pod_groups=self.has_pod_groups)

    async def has_pod_groups(self) -> bool:
        return self.has

    def groups(self) -> list[str]:
        return [name for kind, _, name in self.cluster.objects if kind == "PodGroup"]

    def joined(self, role: str) -> set[str | None]:
        """The groups of all pods of a role that were created."""
        pods = [pod for pod, _ in self.seen if pod["metadata"]["labels"]["cprjob.io/role"] == role]
        return {pod["spec"].get("schedulingGroup", {}).get("podGroupName") for pod in pods}


async def test_members_are_of_one_group_that_exists_before_them() -> None:
    harness = GroupHarness(data__samples=2_000_000, shards__spares=1)
    await harness.go(10)
    assert harness.status.phase == "Running"
    (name,) = harness.groups()
    group = harness.cluster.objects["PodGroup", "default", name]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": TRAINERS + SHARDS}}
    assert group["spec"]["disruptionMode"] == {"single": {}}
    assert group["metadata"]["ownerReferences"][0]["name"] == "job"
    assert harness.joined("trainer") == harness.joined("shard") == {name}
    assert harness.joined("spare") == {None}, "training needs no spare"
    assert all(groups == [name] for _, groups in harness.seen)
    harness.seen.clear()
    harness.cluster.kill("trainer", 1)
    await harness.go(12)
    assert harness.status.phase == "Running"
    assert (harness.joined("trainer"), harness.groups()) == ({name}, [name]), "it joins the group that trains"


async def test_job_that_resumes_has_another_group_of_its_present_size() -> None:
    harness = GroupHarness(data__samples=2_000_000)
    await harness.go(10)
    (first,) = harness.groups()
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(30)
    assert (harness.status.phase, harness.groups()) == ("Suspended", [])
    harness.cluster.set_spec("job", suspend=False, trainers={"replicas": TRAINERS + 1})
    await harness.go(30)
    assert harness.status.phase == "Running"
    (second,) = harness.groups()
    assert second != first
    group = harness.cluster.objects["PodGroup", "default", second]
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == TRAINERS + 1 + SHARDS


async def test_group_has_the_priority_of_its_pods() -> None:
    harness = GroupHarness(trainers__template={"spec": {"priorityClassName": "urgent"}})
    await harness.go(3)
    (name,) = harness.groups()
    assert harness.cluster.objects["PodGroup", "default", name]["spec"]["priorityClassName"] == "urgent"


@pytest.mark.parametrize(
    ("has", "gang", "cause"),
    [(False, "Auto", "the cluster has no PodGroups"), (True, "Off", "spec.scheduling.gang is Off")],
)
async def test_job_without_a_group_names_the_cause_while_its_pods_find_no_node(
    has: bool,  # noqa: FBT001 -- a parameter of the test
    gang: str,
    cause: str,
) -> None:
    harness = GroupHarness(has=has, scheduling={"gang": gang})
    harness.cluster.unschedulable = "0/3 nodes are available"
    await harness.go(6)
    assert harness.groups() == []
    assert harness.joined("trainer") == {None}
    status, reason, message = harness.condition("PodsReady")
    assert (status, reason) == ("False", "Unschedulable")
    assert f"NoGang: {cause}" in message


async def test_job_with_a_group_has_no_such_hint() -> None:
    harness = GroupHarness()
    harness.cluster.unschedulable = "0/3 nodes are available"
    await harness.go(6)
    assert "NoGang" not in harness.condition("PodsReady")[2]
