"""The storm as a test, which pytest does not collect by itself: `make storm SEED=n MINUTES=m`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.harness import Cluster, Space
from cluster.harness.control import ControlPlane
from cluster.harness.nodes import Nodes
from cluster.storm.fault import World, surely
from cluster.storm.people import give_credentials
from cluster.storm.storm import Storm

DEFAULTS = {"SEED": "1", "MINUTES": "60", "FIRST": "1", "ONLY": ""}
SEED, MINUTES, FIRST, ONLY = (os.environ.get(name, default) for name, default in DEFAULTS.items())
FOLDER = Path(__file__).parents[3] / ".cache"


@pytest.fixture
def world(cluster: Cluster, clicks: None, space: Space) -> Iterator[World]:
    world = World(cluster, ControlPlane(cluster.nodes.scripts, cluster.kubectl), space)
    give_credentials(world)
    yield world
    nodes: Nodes = cluster.nodes
    if nodes.backend == "bare":
        world.control.heal()
    surely(nodes.heal)
    surely(lambda: cluster.store.remove_user(world.user[0]))


@pytest.mark.realdata
@pytest.mark.timeout(0)
def test_whatever_strikes_is_made_good_or_told(world: World) -> None:
    log = FOLDER / f"storm-{SEED}.log"
    log.unlink(missing_ok=True)
    storm = Storm(world, int(SEED), log, [name.strip() for name in ONLY.split(";") if name.strip()])
    try:
        storm.rage(float(MINUTES), int(FIRST))
    finally:
        storm.say(f"seed {SEED}\n{storm.table()}")
    assert storm.found == [], f"seed {SEED}: {len(storm.found)} findings; {log} has the timeline"
