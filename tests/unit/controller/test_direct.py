"""Rosters that are sent to pods when a spare takes a place, by an operator that made the job's key."""

from __future__ import annotations

import random

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json, to_json
from cpr_contract.reports import RosterNote
from cpr_contract.roster import ShardRoster, TrainerRoster, is_signed, unseal
from cpr_operator.controller.controller import Controller
from cpr_operator.reconcile.polling import recorded_in
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.run import TIMING, Simulation
from simulation.control_plane.workload import Scenario, spec


@pytest.fixture
async def driver() -> Simulation:
    """A job that trains, with a spare that is warm."""
    made = Simulation(Scenario("direct", (), spec(shards__spares=1)))
    await made.passes(14)
    assert [spare.state for spare in made.status().spares] == ["Ready"]
    return made


def key_of(cluster: SimulatedCluster) -> bytes:
    (secret,) = cluster.secrets.values()
    return str(secret["stringData"][env.KEY_NAME]).encode()


async def test_concerned_pods_get_their_roster_signed_for_them(driver: Simulation) -> None:
    cluster = driver.cluster
    (spare,) = cluster.spares()
    cluster.kill("shard", 1)
    await driver.passes(1)
    sent = {name: (text, signature) for name, text, signature in cluster.sent}
    assert {spare.name, cluster.member("trainer", 0).name, cluster.member("trainer", 1).name} <= set(sent)
    for name, (text, signature) in sent.items():
        assert cluster.pods[name].meta["annotations"][env.ANNOTATION_ROSTER] == text
        assert is_signed(key_of(cluster), name, text.encode(), signature)
        assert not is_signed(key_of(cluster), "another", text.encode(), signature)
    roster = from_json(ShardRoster, sent[spare.name][0])
    assert (roster.index, roster.incarnation) == (1, 2)


async def test_rosters_are_not_sent_without_a_promotion(driver: Simulation) -> None:
    driver.cluster.kill("trainer", 1)
    await driver.passes(4)
    assert driver.status().counters.group == 2
    assert driver.cluster.sent == []


async def test_operator_without_the_key_promotes_a_spare_without_sending_rosters(
    driver: Simulation,
) -> None:
    cluster = driver.cluster
    (spare,) = cluster.spares()
    successor = Controller(cluster, lambda: cluster.now, timing=TIMING, rng=random.Random(1))
    cluster.kill("shard", 1)
    await successor.run_pass("default", "job")
    assert driver.status().shards[1].pod == spare.name
    assert cluster.pods[spare.name].meta["labels"][env.LABEL_INDEX] == "1"
    assert cluster.sent == []


async def test_leader_receives_the_recorded_anchor_sealed_or_in_its_roster(
    driver: Simulation,
) -> None:
    """Polls of another process cannot make it delete anchors."""
    cluster, held = driver.cluster, recorded_in(driver.status())
    leader, key = cluster.member("trainer", 0).name, key_of(cluster)
    assert held.anchor
    await driver.passes(1)
    sealed = cluster.recorded[leader]
    assert unseal(key, leader, sealed) == to_json(held)
    for forged in (sealed.replace(held.anchor, "job/8"), to_json(held), ""):
        assert unseal(key, leader, forged) is None
    assert unseal(key, "another", sealed) is None
    assert "recorded" not in cluster.pods[leader].meta["annotations"][env.ANNOTATION_ROSTER]
    driver.controller = Controller(cluster, lambda: cluster.now, timing=TIMING, rng=random.Random(1))
    await driver.passes(1)
    calls, found = len(cluster.calls), recorded_in(driver.status())
    assert "patch_pod" not in cluster.calls[-3:], "the operator before has notified the leader"
    while recorded_in(driver.status()) == found:
        await driver.passes(1)
    assert "patch_pod" in cluster.calls[calls:]
    assert cluster.recorded[leader] == ""
    roster = cluster.pods[leader].meta["annotations"][env.ANNOTATION_ROSTER]
    assert from_json(RosterNote, roster).recorded == recorded_in(driver.status())
    assert from_json(TrainerRoster, roster).counters == driver.status().counters.to_contract()
