from cpr_operator.api.status import Budget, Ledger, Status
from cpr_operator.reconcile.conditions import Finding, budget, with_findings


def test_the_time_of_transition_moves_only_with_the_status() -> None:
    first = with_findings(Status(), 1, 100.0, Finding("PodsReady", "False", "Waiting", "for shard/1"))
    same = with_findings(first, 2, 200.0, Finding("PodsReady", "False", "CreateRefused", "quota"))
    (condition,) = same.conditions
    assert (condition.last_transition_time, condition.reason, condition.observed_generation) == (
        100.0,
        "CreateRefused",
        2,
    )
    (moved,) = with_findings(same, 2, 300.0, Finding("PodsReady", "True", "AllReady")).conditions
    assert moved.last_transition_time == 300.0


def test_there_is_one_condition_of_a_type() -> None:
    status = with_findings(Status(), 1, 1.0, Finding("Failed", "True", "A"), Finding("Complete", "False", "B"))
    assert [c.type for c in with_findings(status, 1, 2.0, Finding("Failed", "True", "C")).conditions] == [
        "Failed",
        "Complete",
    ]


def told(limit: float, spent: float, reserved: float) -> dict[str, str]:
    status = Status(
        budget=Budget(limit=limit, spent=spent, reserved=reserved, remaining=max(limit - spent - reserved, 0)),
        ledger=Ledger(total_samples=1000),
    )
    return {finding.type: finding.status for finding in budget(status)}


def test_a_budget_is_at_risk_from_three_quarters_on_and_exhausted_when_no_sample_is_left() -> None:
    assert told(0.1, 0.05, 0.0) == {"BudgetAtRisk": "False", "BudgetExhausted": "False"}
    assert told(0.1, 0.05, 0.03) == {"BudgetAtRisk": "True", "BudgetExhausted": "False"}
    assert told(0.1, 0.05, 0.05) == {"BudgetAtRisk": "True", "BudgetExhausted": "False"}
    assert told(0.1, 0.1, 0.0) == {"BudgetAtRisk": "True", "BudgetExhausted": "True"}


def test_a_job_without_a_budget_never_had_one_to_exhaust() -> None:
    assert told(0.0, 0.0, 0.0) == {"BudgetAtRisk": "False", "BudgetExhausted": "False"}
