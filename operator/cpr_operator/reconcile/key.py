"""The job's handshake key when it is lost or replaced: all members go on under a new one, together.

A member reads its key once, at its start. One that is created after the Secret was lost would have none, and one under
another key would be believed by nobody. So all stop, are saved, and resume: nothing is lost.
"""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.key import KEY_CHANGED
from cpr_operator.failures import Failure, classify
from cpr_operator.reconcile.world import World

WHY = "the job's key was lost, and all members go on under a new one"


def needs_new_key(world: World) -> bool:
    """Whether the key of a job that has started is gone, or a member found another one in its place."""
    status = world.job.status
    if status.runtime is None or status.runtime.key_digest == world.key_digest:
        return False
    return world.key_lost or _is_replaced(world)


def with_new_key(world: World) -> World:
    """The world in which pods are made with the next key."""
    status = world.job.status
    if status.runtime is None:
        return world
    status = status.evolve(runtime=status.runtime.evolve(key_digest=world.key_digest))
    return replace(world, job=replace(world.job, status=status))


def _is_replaced(world: World) -> bool:
    status = world.job.status
    own = {member.pod for member in status.members}
    ends = (classify(pod) for pod in world.pods if pod.name in own)
    return any(isinstance(end, Failure) and end.problem and end.problem.reason == KEY_CHANGED for end in ends)
