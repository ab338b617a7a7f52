"""The decision of one pass: from a job, its pods and their reports to a status and to effects. Pure."""

from cpr_operator.reconcile.observe import called_silent, first_round, second_round
from cpr_operator.reconcile.pass_ import EventReason, Hold, Job, Outcome, Report, Timing, World
from cpr_operator.reconcile.pipeline import held_back, reconcile

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
