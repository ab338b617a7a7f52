"""Which node a successor keeps off. Who fell silent may be gone with its node, which Kubernetes learns much later."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Member
from cpr_operator.failures import UNSCHEDULABLE, Failure, Kind
from cpr_operator.reconcile.members import M, edited, successor
from cpr_operator.reconcile.observe import Alive, Fact
from cpr_operator.reconcile.world import Step, World

#: Kinds of failure after which the node itself may be gone, though its object still says Ready.
SILENT_ENDS = frozenset({Kind.HUNG, Kind.NODE_LOST})


def avoided(member: Member, failure: Failure) -> str:
    """The node that the successor of a lost member keeps off; empty if any will do.

    While the member has not worked again, what was avoided stays avoided.
    """
    if failure.kind in SILENT_ENDS:
        return member.node
    return member.avoid if member.lost_at is not None else ""


def relent(world: World, step: Step, facts: Mapping[str, Fact]) -> Step:
    """Where the scheduler knows no other node, the next try may go anywhere: the silent one may be all there is."""

    def heir(member: M) -> M:
        match facts[member.name]:
            case Alive(trouble=trouble) if member.avoid and trouble and trouble.reason == UNSCHEDULABLE:
                return successor(world.job.id, member, world.now).evolve(avoid="")
            case _:
                return member

    return step.to(edited(step.status, heir))
