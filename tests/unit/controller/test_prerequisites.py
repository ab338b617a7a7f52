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
from cpr_operator.controller import Controller
from cpr_operator.controller.prerequisites import CHECK_S
from cpr_operator.desired.job_objects import IngressSources
from cpr_operator.reconcile import Timing
from simulation.control_plane.nodes import Pod
from simulation.control_plane.workload import spec
from support.house import House

TOTAL = 2_000_000
KEYS = itertools.count(1)
FORBIDDEN = "networkpolicies.networking.k8s.io is forbidden"


class PrerequisiteHouse(House):
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

    def refuse(self, wanted: Callable[[Manifest], bool]) -> None:
        apply = type(self.cluster).apply

        async def refusing(manifest: Manifest) -> None:
            if wanted(manifest):
                raise RefusedError(FORBIDDEN)
            await apply(self.cluster, manifest)

        self.cluster.apply = refusing


async def test_lost_key_is_replaced_for_all_pods_without_a_loss() -> None:
    house = PrerequisiteHouse()
    await house.begin()
    before = {pod.uid for pod in house.cluster.pods.values()}
    for pod in house.cluster.pods.values():
        (main,) = pod.manifest["spec"]["containers"]
        values = {each["name"]: each.get("value") for each in main["env"]}
        assert values[env.KEY_DIGEST] == key_digest(house.key_of(pod).encode())
    house.cluster.secrets.clear()
    await house.go(4)
    assert house.status.phase == "Running", "it is looked at seldom"
    house.cluster.now += CHECK_S
    await house.go(1)
    assert (house.status.phase, "key was lost" in house.condition("Suspended")[2]) == ("Suspending", True)
    await house.go(30)
    assert house.status.phase == "Running"
    assert len(house.keys()) == 1
    assert not before & {pod.uid for pod in house.cluster.pods.values()}
    assert set(house.status.ledger.ranges) == {()}
    assert house.status.counters.generation == 1


async def test_members_are_not_replaced_under_another_key() -> None:
    """The key is looked for before a pod is created, and by another process of the operator, too."""
    house = PrerequisiteHouse()
    await house.begin()
    house.cluster.secrets.clear()
    house.restart()
    house.cluster.kill("shard", 1)
    await house.go(40)
    assert house.status.phase == "Running"
    assert len(house.keys()) == 1
    assert {member.incarnation for member in house.status.trainers} == {2}


async def test_changed_key_is_replaced_for_all_pods() -> None:
    house = PrerequisiteHouse()
    await house.begin()
    (name, secret), *_ = house.cluster.secrets.items()
    house.cluster.secrets[name] = {**secret, "stringData": {"key": "another"}}
    house.cluster.kill("shard", 1)
    await house.go(2)
    changed = to_json(Problem(KEY_CHANGED, "It is another key.", "Leave it alone."))
    house.cluster.exit_with("shard", 1, 1, changed)
    await house.go(1)
    assert house.status.phase == "Suspending"
    await house.go(40)
    assert (house.status.phase, len(house.keys())) == ("Running", 1)
    assert house.keys() != {"another"}


async def test_key_of_an_earlier_version_is_used_until_it_is_lost() -> None:
    """Version 0.1.0 gave keys no names."""
    house = PrerequisiteHouse()
    await house.begin()
    job = house.cluster.jobs["default", "job"]
    runtime = {name: value for name, value in job.status["runtime"].items() if name != "keyDigest"}
    house.cluster.jobs["default", "job"] = replace(job, status={**job.status, "runtime": runtime})
    (secret,) = house.cluster.secrets.values()
    house.cluster.secrets = {"job-12345-key": secret}
    house.restart()
    house.cluster.kill("shard", 1)
    await house.go(12)
    assert (house.status.phase, house.status.restarts, set(house.cluster.secrets)) == ("Running", 1, {"job-12345-key"})
    volumes = house.cluster.member("shard", 1).manifest["spec"]["volumes"]
    assert {"name": "cprjob-key", "secret": {"secretName": "job-12345-key"}} in volumes
    house.cluster.secrets.clear()
    house.cluster.now += CHECK_S
    await house.go(40)
    assert house.status.phase == "Running"
    assert (len(house.keys()), "job-12345-key" in house.cluster.secrets) == (1, False)


async def test_unclear_answer_about_a_secret_changes_nothing() -> None:
    house = PrerequisiteHouse()
    await house.begin()

    async def refuse(manifest: Manifest) -> bool:
        raise RefusedError("exceeded quota: secrets")

    house.cluster.has_secret = refuse
    house.cluster.kill("shard", 1)
    house.cluster.now += CHECK_S
    await house.go(12)
    assert (house.status.phase, house.status.restarts) == ("Running", 1)


async def test_key_is_created_before_the_first_pods() -> None:
    """The operator dies between the status and the Secret."""
    house = PrerequisiteHouse()

    def die(call: str, _number: int, when: str) -> None:
        if (call, when) == ("create_secret", "before"):
            raise KeyboardInterrupt

    house.cluster.fault = die
    with pytest.raises(KeyboardInterrupt):
        await house.go()
    house.cluster.fault = lambda *_: None
    house.restart()
    await house.go(14)
    assert house.status.phase == "Running"
    assert len(house.keys()) == 1
    assert house.condition("Suspended")[0] == "False"


async def test_pods_are_not_created_before_their_network_policy() -> None:
    house = PrerequisiteHouse()
    house.refuse(lambda manifest: manifest["kind"] == "NetworkPolicy")
    await house.go(8)
    assert house.cluster.pods == {}
    status, reason, message = house.condition("PodsReady")
    assert (status, reason) == ("False", "CreateRefused")
    assert FORBIDDEN in message
    house.refuse(lambda _: False)
    house.cluster.now += 20
    await house.go(10)
    assert house.status.phase == "Running"


async def test_refused_disruption_budget_is_reported_and_delays_no_pod() -> None:
    house = PrerequisiteHouse()
    house.refuse(lambda manifest: manifest["kind"] == "PodDisruptionBudget")
    await house.go(8)
    assert len(house.cluster.pods) == 5
    assert house.condition("PodsReady")[1] == "CreateRefused"


async def test_deleted_or_edited_prerequisites_are_restored() -> None:
    house = PrerequisiteHouse()
    await house.begin()
    before = specs(house)
    assert len(before) == 3
    house.cluster.objects.clear()
    await house.go(4)
    assert house.cluster.objects == {}
    house.cluster.now += CHECK_S
    await house.go(1)
    assert specs(house) == before


async def test_pods_of_an_earlier_version_stay_in_their_policy_and_budgets() -> None:
    """They lack the job's uid: they are found by its name, until the last of them is gone."""
    house = PrerequisiteHouse()
    await house.begin()
    for pod in house.cluster.pods.values():
        del pod.meta["labels"][env.LABEL_JOB_UID]
    house.restart()
    house.cluster.kill("shard", 1)
    await house.go(8)
    assert set(selected(house)) == {None}
    for role, number in (("trainer", 2), ("shard", 3)):
        for index in range(number):
            house.cluster.kill(role, index)
    await house.go(20)
    assert set(selected(house)) == {"12345678-0000"}


def specs(house: House) -> dict[tuple[str, str, str], Any]:
    """What the objects say, by kind, namespace and name."""
    return {key: manifest["spec"] for key, manifest in house.cluster.objects.items()}


def selected(house: House) -> list[str | None]:
    """The uids by which pods are selected."""
    selectors = [each.get("selector") or each["podSelector"] for each in specs(house).values()]
    return [each["matchLabels"].get(env.LABEL_JOB_UID) for each in selectors]
