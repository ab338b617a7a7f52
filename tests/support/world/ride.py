"""One seed: a job is struck by faults, and what must hold is looked at."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.world.faults import Faults
from support.world.oracle import Push
from support.world.plan import Plan
from support.world.world import World

#: So long a job has after the last fault; it needs some seconds.
_PATIENCE_S = 200.0
_LOOK_S = 0.5
#: What parity needs to be whole once nothing happens any more.
_REST_S = 30.0


@dataclass
class Ride:
    """What became of a seed. missing: the pushes that each shard lacks in the end, all of them told."""

    seed: int
    met: Counter[str]
    missing: dict[int, set[Push]] = field(default_factory=dict)
    seconds: float = 0.0
    switches: int = 0


def ride_to_the_end(seed: int, alter: Callable[[Plan], Plan] = lambda plan: plan) -> Ride:
    """Faults strike for a while, and then the job must end, with all that it misses told.

    If nothing struck that takes the last copy of a push along, it misses nothing.
    """
    with _world(seed, alter) as world:
        faults = Faults(world, gentle=world.rng.random() < 0.6)
        end = world.scheduler.now + world.rng.choice((2.0, 4.0, 8.0))
        faults.strike_until(end, world.rng.choice((0.2, 0.6, 2.0)))
        while world.scheduler.now < end and not world.finished:
            world.scheduler.run(lambda: world.finished, world.scheduler.now + _LOOK_S)
            world.oracle.check_rows()
        world.scheduler.run(lambda: False, end)
        faults.heal()
        done = world.scheduler.run(lambda: at_the_end(world), world.scheduler.now + _PATIENCE_S)
        assert done, f"the job does not end: {_standing(world)}"
        ride = _ride(world)
        ride.missing = world.oracle.check_end()
        full = world.met["memory for pushes was full"]
        if faults.gentle and world.plan.job.replay_bytes and not full:
            assert not any(ride.missing.values()), f"lost although a copy was left: {ride.missing}"
        if world.plan.job.parity_shards:
            calm = world.scheduler.run(lambda: whole(world), world.scheduler.now + _REST_S)
            assert calm, "parity does not become whole"
            world.oracle.check_parity()
        return ride


def ride_through(seed: int, alter: Callable[[Plan], Plan] = lambda plan: plan) -> Ride:
    """Faults strike without end: at any time, what rows lack is told."""
    with _world(seed, alter) as world:
        end = world.scheduler.now + world.rng.choice((3.0, 6.0, 10.0))
        Faults(world, gentle=world.rng.random() < 0.2).strike_until(end, world.rng.choice((0.1, 0.3, 1.0)))
        while world.scheduler.now < end:
            world.scheduler.run(lambda: False, world.scheduler.now + world.rng.uniform(0.0, _LOOK_S))
            world.oracle.check_rows()
        return _ride(world)


def at_the_end(world: World) -> bool:
    """Whether all is trained and saved, all shards serve, and nobody has yet to hear of a rollback."""
    if not world.finished:
        return False
    last, services = world.plan.last_step, world.serving_services()
    progress = [service.progress for service in services]
    return len(services) == len(world.newest) and all(
        each is not None and (each.generation, set(each.applied), each.dirty) == (world.generation, {last}, False)
        for each in progress
    )


def whole(world: World) -> bool:
    """Whether all parity is there, each member knows where it stands in it, and nothing is under way."""
    found = [world.redundancies[pod.server] for pod in world.newest if pod.serving]
    if len(found) < len(world.newest):
        return False
    at_rest = all(
        each._journal.intact and not each._journal.under_way and not each._journal.pending_bytes for each in found
    )
    return at_rest and all(
        found[member]._journal._streams[part].settled == holder._store.points[part]
        for index, holder in enumerate(found)
        for part, member in enumerate(holder._ring.members(index))
    )


@contextmanager
def _world(seed: int, alter: Callable[[Plan], Plan]) -> Iterator[World]:
    world = World(seed, alter)
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with world.begun():
            yield world
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        logging.disable(before)


def _ride(world: World) -> Ride:
    return Ride(world.seed, world.met, seconds=world.scheduler.now - 1000.0, switches=world.scheduler.switches)


def _standing(world: World) -> list[str]:
    shards = [f"{pod.host}: {pod.report and (pod.report.state, pod.report.applied)}" for pod in world.newest]
    return [
        *shards,
        *(
            f"{each.host}: {each.trainer and (each.trainer.done, each.trainer.exchange.away())}"
            for each in world.trainers
        ),
    ]
