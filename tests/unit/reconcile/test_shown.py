"""Figures for people, and those of the subresource scale."""

from __future__ import annotations

from cpr_operator.api.status import Budget, Plan, Progress, Scale, Status, Trainer
from cpr_operator.reconcile.apply_reports import with_shown

STATUS = Status(
    phase="Running",
    plan=Plan(mode="Partial", interval_seconds=99.53917050691244, reason=""),
    budget=Budget(limit=0.1, spent=0.00123456, remaining=0.09, running_sum=0.0, rollbacks=0),
    progress=Progress(
        samples=1, total_samples=2, percent=42, auc=0.85864, samples_per_second=12345.6, eta_seconds=750.0
    ),
    trainers=(Trainer(index=0), Trainer(index=1)),
)


def test_figures_are_rounded_and_have_units() -> None:
    shown = with_shown(STATUS, "job").shown
    assert (shown.progress, shown.interval, shown.speed, shown.eta) == ("42%", "99.5 s", "12346/s", "12.5 min")
    assert (shown.spent, shown.limit, shown.auc) == ("0.001235", "0.1", "0.8586")


def test_what_does_not_train_has_no_speed() -> None:
    for phase in ("Recovering", "Suspended", "Succeeded"):
        shown = with_shown(STATUS.model_copy(update={"phase": phase}), "job").shown
        assert (shown.speed, shown.eta, shown.progress) == ("", "", "42%")


def test_the_scale_names_the_trainers() -> None:
    assert with_shown(STATUS, "job").scale == Scale(replicas=2, selector="cprjob.io/job=job,cprjob.io/role=trainer")
    assert with_shown(Status(), "job").scale == Scale(replicas=0, selector="cprjob.io/job=job,cprjob.io/role=trainer")
