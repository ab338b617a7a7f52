"""Faults of pods, and of the processes in them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from cluster.harness import Pod
from cluster.harness.nodes import Signal
from cluster.harness.space import Role
from simulation.real_cluster.failpoints.fault import (
    ENDS,
    KILLS,
    Fault,
    Hit,
    Inject,
    NotNowError,
    Target,
    Who,
    once,
    surely,
)

HELD_S = (15.0, 30.0)  # longer than the silence that jobs put up with


def at(act: Callable[[Target, Pod], None], role: Role | None = None) -> Inject:
    """Inject one member."""

    def inject(target: Target, random: Random) -> Hit:
        who, pod = target.someone(random, role)
        surely(lambda: act(target, pod), 20)
        return frozenset({who})

    return once(inject)


def _delete(target: Target, pod: Pod) -> None:
    target.space.delete_pod(pod.name)


def _force(target: Target, pod: Pod) -> None:
    target.space.delete_pod(pod.name, force=True)


def _evict(target: Target, pod: Pod) -> None:
    target.space.evict_pod(pod.name)


def _signal(signal: Signal) -> Callable[[Target, Pod], None]:
    return lambda target, pod: target.cluster.nodes.signal(pod, signal)


def _kill_child(target: Target, pod: Pod) -> None:
    target.cluster.nodes.kill_child(pod)


def _exhaust(target: Target, pod: Pod) -> None:
    target.cluster.nodes.exhaust(pod)


def _kill_children(target: Target, pod: Pod) -> None:
    """Three processes of one pod die within a minute, which ends the pod."""
    for _ in range(3):
        surely(lambda: target.cluster.nodes.kill_child(pod), 10)
        time.sleep(3)


def _together(*roles: Role, every: Role | None = None) -> Inject:
    """Delete several members of one job by force, at once: one of each role, or all of one."""

    def inject(target: Target, random: Random) -> Hit:
        found = target.members([random.choice(target.training())])
        victims: list[tuple[Who, Pod]] = []
        for role in roles or [role for (_, role, _), _ in found if role == every]:
            fit = [each for each in found if each[0][1] == role and each not in victims]
            if not fit:
                raise NotNowError(f"another {role}")
            victims.append(random.choice(fit))
        for _, pod in victims:
            surely(lambda pod=pod: _force(target, pod), 20)
        return frozenset(who for who, _ in victims)

    return once(inject)


@contextmanager
def _stopped(target: Target, random: Random) -> Iterator[Hit]:
    who, pod = target.someone(random)
    target.cluster.nodes.signal(pod, "STOP")
    try:
        yield frozenset({who})
    finally:
        _go_on(target, pod)


def _go_on(target: Target, pod: Pod) -> None:
    """Continue a stopped pod, unless it was replaced meanwhile and is gone."""

    def act() -> None:
        if (now := target.space.pod(pod.name)) and now.container_id == pod.container_id and now.phase == "Running":
            target.cluster.nodes.signal(pod, "CONT")

    surely(act)


def _frozen_thread(first: bool) -> Inject:  # noqa: FBT001 (the two entries of the catalogue name it)
    @contextmanager
    def inject(target: Target, random: Random) -> Iterator[Hit]:
        who, pod = target.someone(random)
        with target.cluster.nodes.frozen_thread(pod, 0 if first else random.randrange(1, 16)):
            yield frozenset({who})

    return inject


@contextmanager
def _throttled(target: Target, random: Random) -> Iterator[Hit]:
    who, pod = target.someone(random)
    with target.cluster.nodes.throttled(pod):
        yield frozenset({who})


SEVERAL = {"several"}
PODS: tuple[Fault, ...] = (
    Fault("pods", "a pod is deleted", at(_delete), ENDS),
    Fault("pods", "a pod is deleted by force", at(_force), KILLS),
    Fault("pods", "a pod is evicted", at(_evict), ENDS),
    Fault("pods", "a pod has no memory left", at(_exhaust), KILLS, bare=True),
    Fault("pods", "a pod is stopped", _stopped, KILLS, holds_s=HELD_S),
    Fault(
        "pods", "the main thread of a process is frozen", _frozen_thread(first=True), KILLS, holds_s=HELD_S, bare=True
    ),
    Fault(
        "pods", "another thread of a process is frozen", _frozen_thread(first=False), KILLS, holds_s=HELD_S, bare=True
    ),
    Fault("pods", "two shards are deleted at once", _together("shard", "shard"), KILLS, SEVERAL),
    Fault("pods", "all shards are deleted at once", _together(every="shard"), KILLS, SEVERAL),
    Fault("pods", "all trainers are deleted at once", _together(every="trainer"), KILLS, SEVERAL),
    Fault("pods", "a shard and a trainer are deleted at once", _together("shard", "trainer"), KILLS, SEVERAL),
)
PROCESSES: tuple[Fault, ...] = (
    Fault("processes", "a shard's server is killed", at(_kill_child, "shard"), KILLS),
    Fault("processes", "a trainer's process is killed", at(_kill_child, "trainer"), KILLS),
    Fault("processes", "three processes of a pod are killed", at(_kill_children), KILLS),
    Fault("processes", "all processes of a shard are killed", at(_signal("KILL"), "shard"), KILLS),
    Fault("processes", "all processes of a trainer are killed", at(_signal("KILL"), "trainer"), KILLS),
    Fault("processes", "a pod's processes are told to end", at(_signal("TERM")), ENDS),
    Fault("processes", "a pod runs a fifth of the time", _throttled, KILLS, holds_s=HELD_S, bare=True),
)
