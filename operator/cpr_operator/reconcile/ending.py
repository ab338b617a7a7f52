"""The leader has trained everything: who is awaited still, and who begins anew where that end does not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.status import Anchor, Shard, Status
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.observe import Alive, Done, Fact, Lost, report_of
from cpr_operator.reconcile.reports import is_current
from cpr_operator.reconcile.world import World

_UNDONE = Failure(Kind.UNDONE, "Undone", "it trained to an end that does not count", ended=True, exit_code=0)
_LATE = Failure(Kind.UNDONE, "Late", "it restored a save older than the end, after which nobody trains", ended=False)


def is_awaited(status: Status) -> bool:
    """Whether a shard has not told what it lost: it may be more than was set aside, and more than a trainer told.

    The process before it may have gone on for a while, if nobody saw it end. One that dies untold has a successor.
    """
    return any(shard.lost_at is not None or shard.lost_row_updates is None for shard in status.shards)


def with_result(status: Status, result: Anchor) -> Status:
    """The status with the final anchor, which holds a save of every member: a shard that finds none tells."""
    shards = tuple(s if s.state == "BelowFloor" else s.evolve(saved_samples=result.samples) for s in status.shards)
    dense = status.dense.evolve(saved_samples=result.samples)
    return status.evolve(result=result, shards=shards, dense=dense)


def with_late_heirs(world: World, status: Status, facts: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """The facts of a job with a final anchor: lost trainers are done, and shards that it left behind are lost.

    What a trainer held is in the anchor. So is what a shard lost that was cut off and trained to the end, while its
    heir restored an older save: only another heir will find it.
    """
    found = {n: Done("") if n.startswith("trainer/") and isinstance(f, Lost) else f for n, f in facts.items()}
    for shard in status.shards:
        name = shard.name
        match found[name]:
            case Alive(pod=pod) if _is_late(world, status, shard):
                found[name] = Lost(pod, _LATE)
            case _:
                pass
    return found


def _is_late(world: World, status: Status, shard: Shard) -> bool:
    """Whether an heir waits for pushes that nobody will send. One that stands at the end has told by now."""
    report = report_of(world, shard)
    restored = isinstance(report, ShardReport) and report.state is ShardState.READY and is_current(status, report)
    return restored and shard.lost_at is not None


def without_result(status: Status, facts: Mapping[str, Fact], *, refused: bool) -> Mapping[str, Fact]:
    """With trainers that ended well as lost, where the job did not end with them.

    While the leader lives the others may end before it does; once it has ended without a result that counts, they all
    have to come back.
    """
    leader = f"trainer/{status.leader or 0}"
    end = facts.get(leader)
    if not isinstance(end, Done | Lost):
        return facts
    undone = _UNDONE
    if refused:
        undone = replace(undone, message="it trained to the end, and more was lost than the budget allows")
    found = {name: Lost(None, undone) if isinstance(fact, Done) else fact for name, fact in facts.items()}
    if isinstance(end, Done) and not end.message:
        nothing = Failure(Kind.CRASHED, "NoResult", "the leader ended and left no result", ended=True, exit_code=0)
        found[leader] = Lost(None, nothing)
    return found
