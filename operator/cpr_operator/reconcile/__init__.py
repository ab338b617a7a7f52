"""One reconciliation of a job: a pure function from its pods and their reports to a status and to effects."""

from cpr_operator.reconcile.phases import refuse_pods
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.polling import first_round, missed_by_peers, second_round, suspects
from cpr_operator.reconcile.spares import spare_is_needed
from cpr_operator.reconcile.types import AdmissionGate, Job, Outcome, ReconcileInput, Report, Timing

__all__ = [
    "AdmissionGate",
    "Job",
    "Outcome",
    "ReconcileInput",
    "Report",
    "Timing",
    "first_round",
    "missed_by_peers",
    "reconcile",
    "refuse_pods",
    "second_round",
    "spare_is_needed",
    "suspects",
]
