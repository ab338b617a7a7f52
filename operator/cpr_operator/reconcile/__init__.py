"""The decision of one pass: from a job, its pods and their reports to a status and to effects. Pure."""

from cpr_operator.reconcile.asking import called_silent, first_round, second_round
from cpr_operator.reconcile.reconcile import held_back, reconcile
from cpr_operator.reconcile.world import EventReason, Hold, Job, Outcome, Report, Timing, World

__all__ = [
    "EventReason",
    "Hold",
    "Job",
    "Outcome",
    "Report",
    "Timing",
    "World",
    "called_silent",
    "first_round",
    "held_back",
    "reconcile",
    "second_round",
]
