"""Key, network policy and disruption budgets: there before any pod, put back, and never two keys in one job."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.reports import Problem
from cpr_contract.roster import KEY_CHANGED, key_digest
from cpr_operator.cluster.protocol import Manifest, RefusedError
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.prerequisites import CHECK_S
from cpr_operator.desired.job_objects import IngressSources
from cpr_operator.reconcile import Timing
from simulation.control_plane.nodes import Pod
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

TOTAL = 2_000_000
KEYS = itertools.count(1)
FORBIDDEN = "networkpolicies.networking.k8s.io is forbidden"


class PrerequisiteHarness(ControllerHarness):
    """A job that trains for long, and an operator that makes another key each time."""

    def __init__(self) -> None:
        super().__init__(spec(data__samples=TOTAL), total=TOTAL)
        self.restart()

    def restart(self) -> None:
        """Another process of the operator."""
        timing = Timing(running_s=15, changing_s=1, progress_s=15)
        self.controller = Controller(
            self.cluster,
            lambda: self.cluster.now,
            timing=timing,
            new_key=lambda: f"key-{next(KEYS)}",
            sources=IngressSources("operators"),
            rng=random.Random(1),
        )

    async def begin(self) -> None:
        await self.go(10)
        assert self.status.phase == "Running"

    def keys(self) -> set[str]:
        """The keys of all pods that run: what the Secrets that they mount held when they were created."""
        return {self.key_of(pod) for pod in self.cluster.pods.values() if pod.phase == "Running"}

    def key_of(self, pod: Pod) -> str:
        volumes = {each["name"]: each for each in pod.manifest["spec"]["volumes"]}
        return str(self.cluster.secrets[volumes["cprjob-key"]["secret"]["secretName"]]["stringData"]["key"])

    def refuse(self, selected_by: Callable[[Manifest], bool]) -> None:
        apply = type(self.cluster).apply

        async def refusing(manifest: Manifest) -> None:
            if selected_by(manifest):
                raise RefusedError(FORBIDDEN)
            await apply(self.cluster, manifest)

        self.cluster.apply = refusing


async def test_lost_key_is_replaced_for_all_pods_without_a_loss() -> None:
    harness = PrerequisiteHarness()
    await harness.begin()
    before = {pod.uid for pod in harness.cluster.pods.values()}
    for pod in harness.cluster.pods.values():
        (main,) = pod.manifest["spec"]["containers"]
        values = {each["name"]: each.get("value") for each in main["env"]}
        assert values[env.KEY_DIGEST] == key_digest(harness.key_of(pod).encode())
    harness.cluster.secrets.clear()
    await harness.go(4)
    assert harness.status.phase == "Running", "it is looked at seldom"
    harness.cluster.now += CHECK_S
    await harness.go(1)
    assert (harness.status.phase, "key was lost" in harness.condition("Suspended")[2]) == ("Suspending", True)
    await harness.go(30)
    assert harness.status.phase == "Running"
    assert len(harness.keys()) == 1
    assert not before & {pod.uid for pod in harness.cluster.pods.values()}
    assert set(harness.status.ledger.ranges) == {()}
    assert harness.status.counters.generation == 1


async def test_members_are_not_replaced_under_another_key() -> None:
    """The key is looked for before a pod is created, and by another process of the operator, too."""
    harness = PrerequisiteHarness()
    await harness.begin()
    harness.cluster.secrets.clear()
    harness.restart()
    harness.cluster.kill("shard", 1)
    await harness.go(40)
    assert harness.status.phase == "Running"
    assert len(harness.keys()) == 1
    assert {member.incarnation for member in harness.status.trainers} == {2}


async def test_changed_key_is_replaced_for_all_pods() -> None:
    harness = PrerequisiteHarness()
    await harness.begin()
    (name, secret), *_ = harness.cluster.secrets.items()
    harness.cluster.secrets[name] = {**secret, "stringData": {"key": "another"}}
    harness.cluster.kill("shard", 1)
    await harness.go(2)
    changed = to_json(Problem(KEY_CHANGED, "It is another key.", "Leave it alone."))
    harness.cluster.exit_with("shard", 1, 1, changed)
    await harness.go(1)
    assert harness.status.phase == "Suspending"
    await harness.go(40)
    assert (harness.status.phase, len(harness.keys())) == ("Running", 1)
    assert harness.keys() != {"another"}


async def test_key_of_an_earlier_version_is_used_until_it_is_lost() -> None:
    """Version 0.1.0 gave keys no names."""
    harness = PrerequisiteHarness()
    await harness.begin()
    job = harness.cluster.jobs["default", "job"]
    runtime = {name: value for name, value in job.status["runtime"].items() if name != "keyDigest"}
    harness.cluster.jobs["default", "job"] = replace(job, status={**job.status, "runtime": runtime})
    (secret,) = harness.cluster.secrets.values()
    harness.cluster.secrets = {"job-12345-key": secret}
    harness.restart()
    harness.cluster.kill("shard", 1)
    await harness.go(12)
    assert (harness.status.phase, harness.status.restarts, set(harness.cluster.secrets)) == (
        "Running",
        1,
        {"job-12345-key"},
    )
    volumes = harness.cluster.member("shard", 1).manifest["spec"]["volumes"]
    assert {"name": "cprjob-key", "secret": {"secretName": "job-12345-key"}} in volumes
    harness.cluster.secrets.clear()
    harness.cluster.now += CHECK_S
    await harness.go(40)
    assert harness.status.phase == "Running"
    assert (len(harness.keys()), "job-12345-key" in harness.cluster.secrets) == (1, False)


async def test_unclear_answer_about_a_secret_changes_nothing() -> None:
    harness = PrerequisiteHarness()
    await harness.begin()

    async def refuse(manifest: Manifest) -> bool:
        raise RefusedError("exceeded quota: secrets")

    harness.cluster.has_secret = refuse
    harness.cluster.kill("shard", 1)
    harness.cluster.now += CHECK_S
    await harness.go(12)
    assert (harness.status.phase, harness.status.restarts) == ("Running", 1)


async def test_key_is_created_before_the_first_pods() -> None:
    """The operator dies between the status and the Secret."""
    harness = PrerequisiteHarness()

    def die(call: str, _number: int, when: str) -> None:
        if (call, when) == ("create_secret", "before"):
            raise KeyboardInterrupt

    harness.cluster.fault = die
    with pytest.raises(KeyboardInterrupt):
        await harness.go()
    harness.cluster.fault = lambda *_: None
    harness.restart()
    await harness.go(14)
    assert harness.status.phase == "Running"
    assert len(harness.keys()) == 1
    assert harness.condition("Suspended")[0] == "False"


async def test_pods_are_not_created_before_their_network_policy() -> None:
    harness = PrerequisiteHarness()
    harness.refuse(lambda manifest: manifest["kind"] == "NetworkPolicy")
    await harness.go(8)
    assert harness.cluster.pods == {}
    status, reason, message = harness.condition("PodsReady")
    assert (status, reason) == ("False", "CreateRefused")
    assert FORBIDDEN in message
    harness.refuse(lambda _: False)
    harness.cluster.now += 20
    await harness.go(10)
    assert harness.status.phase == "Running"


async def test_refused_disruption_budget_is_reported_and_delays_no_pod() -> None:
    harness = PrerequisiteHarness()
    harness.refuse(lambda manifest: manifest["kind"] == "PodDisruptionBudget")
    await harness.go(8)
    assert len(harness.cluster.pods) == 5
    assert harness.condition("PodsReady")[1] == "CreateRefused"


async def test_deleted_or_edited_prerequisites_are_restored() -> None:
    harness = PrerequisiteHarness()
    await harness.begin()
    before = specs(harness)
    assert len(before) == 3
    harness.cluster.objects.clear()
    await harness.go(4)
    assert harness.cluster.objects == {}
    harness.cluster.now += CHECK_S
    await harness.go(1)
    assert specs(harness) == before


async def test_pods_of_an_earlier_version_stay_in_their_policy_and_budgets() -> None:
    """They lack the job's uid: they are found by its name, until the last of them is gone."""
    harness = PrerequisiteHarness()
    await harness.begin()
    for pod in harness.cluster.pods.values():
        del pod.meta["labels"][env.LABEL_JOB_UID]
    harness.restart()
    harness.cluster.kill("shard", 1)
    await harness.go(8)
    assert set(selected(harness)) == {None}
    for role, number in (("trainer", 2), ("shard", 3)):
        for index in range(number):
            harness.cluster.kill(role, index)
    await harness.go(20)
    assert set(selected(harness)) == {"12345678-0000"}


def specs(harness: ControllerHarness) -> dict[tuple[str, str, str], Any]:
    """The specs of the objects, by kind, namespace and name."""
    return {key: manifest["spec"] for key, manifest in harness.cluster.objects.items()}


def selected(harness: ControllerHarness) -> list[str | None]:
    """The uids by which pods are selected."""
    selectors = [each.get("selector") or each["podSelector"] for each in specs(harness).values()]
    return [each["matchLabels"].get(env.LABEL_JOB_UID) for each in selectors]
