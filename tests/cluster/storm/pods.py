"""Faults of pods, and of the processes in them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from cluster.harness import Pod
from cluster.harness.nodes import Signal
from cluster.harness.space import Role
from cluster.storm.fault import ENDS, KILLS, Fault, NotNowError, Strike, Struck, World, fault, once, surely

HELD_S = (15.0, 30.0)  # longer than the silence that jobs put up with


def at(act: Callable[[World, Pod], None], role: Role | None = None) -> Strike:
    """Strike one member."""

    def strike(world: World, random: Random) -> Struck:
        who, pod = world.someone(random, role)
        surely(lambda: act(world, pod), 20)
        return frozenset({who})

    return once(strike)


def _delete(world: World, pod: Pod) -> None:
    world.space.delete_pod(pod.name)


def _force(world: World, pod: Pod) -> None:
    world.space.delete_pod(pod.name, force=True)


def _evict(world: World, pod: Pod) -> None:
    world.space.evict_pod(pod.name)


def _signal(signal: Signal) -> Callable[[World, Pod], None]:
    return lambda world, pod: world.cluster.nodes.signal(pod, signal)


def _kill_child(world: World, pod: Pod) -> None:
    world.cluster.nodes.kill_child(pod)


def _exhaust(world: World, pod: Pod) -> None:
    world.cluster.nodes.exhaust(pod)


def _kill_children(world: World, pod: Pod) -> None:
    """Three processes of one pod die within a minute, which ends the pod."""
    for _ in range(3):
        surely(lambda: world.cluster.nodes.kill_child(pod), 10)
        time.sleep(3)


def _together(world: World, random: Random, chosen: Callable[[list[Role]], list[Role]]) -> Struck:
    """Delete several members of one job by force, at once."""
    run = random.choice(world.training())
    found = world.members([run])
    victims = []
    for role in chosen([who[1] for who, _ in found]):
        fit = [each for each in found if each[0][1] == role and each not in victims]
        if not fit:
            raise NotNowError(f"another {role}")
        victims.append(random.choice(fit))
    for _, pod in victims:
        surely(lambda pod=pod: _force(world, pod), 20)
    return frozenset(who for who, _ in victims)


def _two_shards(world: World, random: Random) -> Struck:
    return _together(world, random, lambda _: ["shard", "shard"])


def _all_shards(world: World, random: Random) -> Struck:
    return _together(world, random, lambda roles: [role for role in roles if role == "shard"])


def _all_trainers(world: World, random: Random) -> Struck:
    return _together(world, random, lambda roles: [role for role in roles if role == "trainer"])


def _shard_and_trainer(world: World, random: Random) -> Struck:
    return _together(world, random, lambda _: ["shard", "trainer"])


@contextmanager
def _stopped(world: World, random: Random) -> Iterator[Struck]:
    who, pod = world.someone(random)
    world.cluster.nodes.signal(pod, "STOP")
    try:
        yield frozenset({who})
    finally:
        _go_on(world, pod)


def _go_on(world: World, pod: Pod) -> None:
    """Continue a stopped pod, unless it was replaced meanwhile and is gone."""

    def act() -> None:
        if (now := world.space.pod(pod.name)) and now.container_id == pod.container_id and now.phase == "Running":
            world.cluster.nodes.signal(pod, "CONT")

    surely(act)


def _stuck(first: bool) -> Strike:  # noqa: FBT001 (the two entries of the catalogue name it)
    @contextmanager
    def strike(world: World, random: Random) -> Iterator[Struck]:
        who, pod = world.someone(random)
        with world.cluster.nodes.stuck(pod, 0 if first else random.randrange(1, 16)):
            yield frozenset({who})

    return strike


@contextmanager
def _dozing(world: World, random: Random) -> Iterator[Struck]:
    who, pod = world.someone(random)
    with world.cluster.nodes.dozing(pod):
        yield frozenset({who})


PODS: tuple[Fault, ...] = (
    fault("pods", "a pod is deleted", at(_delete), ENDS),
    fault("pods", "a pod is deleted by force", at(_force), KILLS),
    fault("pods", "a pod is evicted", at(_evict), ENDS),
    fault("pods", "a pod has no memory left", at(_exhaust), KILLS, bare=True),
    fault("pods", "a pod is stopped", _stopped, KILLS, holds_s=HELD_S),
    fault("pods", "the main thread of a process is stuck", _stuck(first=True), KILLS, holds_s=HELD_S, bare=True),
    fault("pods", "another thread of a process is stuck", _stuck(first=False), KILLS, holds_s=HELD_S, bare=True),
    fault("pods", "two shards are deleted at once", once(_two_shards), KILLS, takes={"several"}),
    fault("pods", "all shards are deleted at once", once(_all_shards), KILLS, takes={"several"}),
    fault("pods", "all trainers are deleted at once", once(_all_trainers), KILLS, takes={"several"}),
    fault("pods", "a shard and a trainer are deleted at once", once(_shard_and_trainer), KILLS, takes={"several"}),
)
PROCESSES: tuple[Fault, ...] = (
    fault("processes", "a shard's server is killed", at(_kill_child, "shard"), KILLS),
    fault("processes", "a trainer's process is killed", at(_kill_child, "trainer"), KILLS),
    fault("processes", "three processes of a pod are killed", at(_kill_children), KILLS),
    fault("processes", "all processes of a shard are killed", at(_signal("KILL"), "shard"), KILLS),
    fault("processes", "all processes of a trainer are killed", at(_signal("KILL"), "trainer"), KILLS),
    fault("processes", "a pod's processes are told to end", at(_signal("TERM")), ENDS),
    fault("processes", "a pod runs a fifth of the time", _dozing, KILLS, holds_s=HELD_S, bare=True),
)
