"""What a report is worth: whose it is, whether it is about the present, and whether its trainer takes part."""

from __future__ import annotations

from cpr_contract.reports import ShardReport, TrainerReport, TrainerState
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
