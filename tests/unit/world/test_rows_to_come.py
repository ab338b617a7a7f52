"""What happens to a shard, and to its neighbours, before it has all its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from cpr_contract.reports import ExitCode
from cpr_trainer.parity.fetch import Missing, Piece
from cpr_trainer.shard.life import TERMINATED
from support.world.plan import Plan, narrowed
from support.world.pods import ShardPod
from support.world.ride import _world, at_the_end
from support.world.world import World

pytestmark = pytest.mark.timeout(600)

LOST = 1
SHAPES = [(2, 1), (4, 2)]


class Gate:
    """Until it is open only rows come that somebody waits for."""

    def __init__(self) -> None:
        self.is_open = False


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, pieces = Gate(), Missing.pieces

    def held(missing: Missing) -> Iterator[Piece]:
        while not gate.is_open:
            yield 0, 0, range(0)
        yield from pieces(missing)

    monkeypatch.setattr(Missing, "pieces", held)
    return gate


def calm(shards: int, k: int) -> Callable[[Plan], Plan]:
    """Nothing fails but what the test lets fail, and no cut comes before the end."""
    alter = narrowed("reset", shards=shards, parity_shards=k, trainers=1, silence_s=3.0)
    return lambda plan: replace(alter(plan), interval_s=1000.0, step_s=0.1)


@contextmanager
def rebuilding(seed: int, shards: int, k: int) -> Iterator[tuple[World, ShardPod]]:
    """A world in which a shard was killed, and its successor serves with rows still to come."""
    with _world(seed, calm(shards, k)) as world:
        until(world, lambda: all(pod.report and pod.report.protected_samples for pod in world.newest))
        lost = world.newest[LOST]
        lost.kill()
        until(world, lambda: world.newest[LOST] is not lost and resumed(world.newest[LOST]))
        pod = world.newest[LOST]
        assert pod.missing_rows > 0
        yield world, pod


def resumed(pod: ShardPod) -> bool:
    progress = None if pod.service is None else pod.service.progress
    return progress is not None and progress.resumed


def until(world: World, condition: Callable[[], bool]) -> None:
    assert world.scheduler.run(condition, world.scheduler.now + 60.0)


def end_well(world: World) -> None:
    until(world, lambda: at_the_end(world))
    assert not any(world.oracle.check_end().values())


@pytest.mark.parametrize(("shards", "k"), SHAPES)
def test_where_all_shards_are_told_to_end_they_wait_for_its_rows(gate: Gate, shards: int, k: int) -> None:
    with rebuilding(1, shards, k) as (world, pod):
        pods = tuple(world.newest)
        for each in pods:
            each.drain()
        world.scheduler.run(lambda: False, world.scheduler.now + 1.0)
        assert pod.missing_rows > 0
        assert pod.code is None
        gate.is_open = True
        until(world, lambda: all(each.code is not None for each in pods))
        assert [each.code for each in pods] == [ExitCode.FLUSHED] * shards
        end_well(world)


@pytest.mark.parametrize(("shards", "k"), SHAPES)
def test_where_its_server_dies_another_incarnation_takes_its_place(gate: Gate, shards: int, k: int) -> None:
    with rebuilding(1, shards, k) as (world, pod):
        pod.kill_server()
        until(world, lambda: pod.code is not None)
        assert pod.code == TERMINATED
        gate.is_open = True
        end_well(world)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("shards", "k"), SHAPES)
def test_where_a_neighbour_dies_nothing_is_lost(gate: Gate, shards: int, k: int, together: bool) -> None:  # noqa: FBT001
    """The rows that are still to come are gone with it; trainers push again what the saves lack."""
    with rebuilding(1, shards, k) as (world, pod):
        world.newest[0].kill()
        if together:
            pod.kill()
        until(world, lambda: pod.code is not None)
        gate.is_open = True
        end_well(world)


def test_where_its_neighbour_is_stopped_for_a_while_it_waits(gate: Gate) -> None:
    with rebuilding(1, 4, 2) as (world, pod):
        server = world.newest[0].server
        assert server is not None
        world.scheduler.freeze(server, 1.0)
        gate.is_open = True
        until(world, lambda: pod.missing_rows == 0)
        assert pod.code is None
        end_well(world)


def test_where_the_job_is_rolled_back_its_rows_are_forgotten(gate: Gate) -> None:
    with rebuilding(1, 4, 2) as (world, pod):
        world.chief.roll_back()
        until(world, lambda: pod.missing_rows == 0)
        assert pod.code is None
        until(world, lambda: at_the_end(world))
        world.oracle.check_end()
