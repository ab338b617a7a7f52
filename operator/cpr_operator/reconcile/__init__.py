"""The decision of one pass: from a job, its pods and their reports to a status and to effects. Pure."""

from cpr_operator.reconcile.lifecycle import refuse_pods
from cpr_operator.reconcile.observe import called_silent, first_round, second_round, suspects
from cpr_operator.reconcile.pass_ import EventReason, Hold, Job, Outcome, PassInput, Report, Timing
from cpr_operator.reconcile.pipeline import reconcile

__all__ = [
    "EventReason",
    "Hold",
    "Job",
    "Outcome",
    "PassInput",
    "Report",
    "Timing",
    "called_silent",
    "first_round",
    "reconcile",
    "refuse_pods",
    "second_round",
    "suspects",
]
