"""What a report is worth: whose it is, whether it is about the present, and whether its trainer takes part."""

from __future__ import annotations

from cpr_contract.manifests import generation_prefix
from cpr_contract.reports import SaveRef, ShardReport, TrainerReport, TrainerState
from cpr_operator.api.status import Status
from cpr_operator.reconcile.observe import TRAINING_STATES, report_of
from cpr_operator.reconcile.world import World

#: States of a leader's report that show its group at work.
AT_WORK = frozenset({TrainerState.TRAINING, TrainerState.MEETING, TrainerState.FINISHING, TrainerState.FINISHED})


def leader_report(world: World) -> TrainerReport | None:
    """The leader's report of this pass, if it answered."""
    status = world.job.status
    if status.leader is None or status.leader >= len(status.trainers):
        return None
    report = report_of(world, status.trainers[status.leader])
    return report if isinstance(report, TrainerReport) else None


def is_current(status: Status, report: ShardReport | TrainerReport) -> bool:
    """Whether the report is about the present generation."""
    return report.counters.generation == status.counters.generation


def takes_part(report: TrainerReport) -> bool:
    """Whether the trainer holds the dense state and knows how far training is: a newcomer does not, until it joined."""
    return report.state in TRAINING_STATES and (report.state is not TrainerState.PAUSED or report.samples_started > 0)


def is_premature(world: World, status: Status, leader: TrainerReport) -> bool:
    """Whether a leader says that it is at work before any shard serves its generation: that is of the one before.

    `status` holds what shards told in this pass. Where none of them answered, the leader is believed.
    """
    told = any(isinstance(report_of(world, shard), ShardReport) for shard in status.shards)
    serving = any(shard.state == "Ready" for shard in status.shards)
    return leader.state in AT_WORK and leader.result is None and told and not serving


def on_line(status: Status, uid: str, save: SaveRef) -> bool:
    """Whether a save is of this generation of the job `uid`, or of where that started."""
    origin = status.forks[-1].anchor if status.forks else None
    prefix = generation_prefix(uid, status.counters.generation) + "/"
    return save.key.startswith(prefix) or save.samples == (origin.samples if origin else 0)
