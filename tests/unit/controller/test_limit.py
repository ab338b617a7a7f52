"""A limit that is moved rolls nothing back: only a loss does."""

import asyncio
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.api.cost_status import Ledger
from cpr_operator.api.status import Shard, Status
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.apply_reports import with_total
from cpr_operator.reconcile.types import ReconcileInput
from cpr_operator.recovery.account import Account, account_of, is_overspent, with_account
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation, input_in_mid_training
from simulation.control_plane.workload import Scenario, spec, trained


async def lowered(document: dict[str, Any], *losses: tuple[int, int]) -> tuple[Status, float]:
    """The end of a job that loses shards at these samples, and its limit, lowered once to the spent portion."""
    driver = Simulation(Scenario("lowered", (), document))
    driver.cluster.total = document["data"]["samples"]
    steps, limit = [(trained(samples), kill("shard", shard)) for samples, shard in losses], 0.0
    while driver.status().phase not in {"Succeeded", "Failed"}:
        if steps and steps[0][0](driver.cluster):
            steps.pop(0)[1](driver.cluster)
        await driver.passes(1)
        budget = driver.status().budget
        if not limit and budget and budget.spent and not budget.reserved and driver.status().recovery is None:
            limit = budget.spent
            driver.cluster.set_spec("job", accuracyBudget={"portionOfLostSamples": limit})
        assert budget is None or budget.spent <= budget.limit
    return driver.status(), limit


@pytest.mark.parametrize("samples", [700, 900, 1100, 1300])
async def test_limit_equal_to_the_shown_spent_portion_is_honoured(samples: int) -> None:
    """The API server's own remedy: at least spent + reserved."""
    status, limit = await lowered(spec(trainers__replicas=1, data__samples=1900), (samples, 1))
    assert status.phase == "Succeeded"
    assert status.budget is not None
    assert (status.counters.generation, status.budget.rollbacks) == (1, 0)
    assert status.budget.spent == status.budget.limit == limit > 0


async def test_loss_after_the_limit_is_spent_rolls_back() -> None:
    status, _ = await lowered(spec(), (900, 1), (1500, 2))
    assert (status.phase, status.counters.generation) == ("Succeeded", 2)


@pytest.fixture(scope="module")
def observed() -> ReconcileInput:
    return asyncio.run(input_in_mid_training(1))


@given(
    st.integers(1, 10**6),
    st.lists(st.fractions(0, 1), min_size=1, max_size=6),
    st.fractions(0, 1),
    st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
)
def test_change_of_the_limit_overspends_nothing(
    observed: ReconcileInput, total: int, lost: list[Fraction], aside: Fraction, portions: tuple[float, float]
) -> None:
    before, after = portions
    book = Ledger(total_samples=total, ranges=tuple(((0, int(part * total)),) if part else () for part in lost))
    shards = tuple(Shard(index=i) for i in range(len(lost)))
    status = Status(shards=shards, ledger=book)
    account = account_of(status)
    limit = max(limit_of(before, total, len(lost)), account.ledger.spent)
    reserved = (((0, int(aside * total)),), *((),) * (len(lost) - 1))
    status = with_account(status, Account(replace(account.ledger, limit=limit), reserved))
    budget = observed.job.spec.accuracy_budget.model_copy(update={"portion_of_lost_samples": after})
    changed = observed.job.spec.model_copy(update={"accuracy_budget": budget})
    moved = with_total(changed, status, total)
    assert not is_overspent(moved)
    expected = limit_of(after, total, len(lost))
    assert expected <= moved.ledger.limit_sample_shards <= max(expected, limit)
    assert moved.ledger.limit_sample_shards == max(expected, min(limit, account_of(status).charged))


def test_a_status_of_version_0_1_0_that_carries_more_than_its_limit_is_not_overspent() -> None:
    book = Ledger(total_samples=1000, limit_sample_shards=1, carried_sample_shards=2, ranges=((),))
    status = Status(shards=(Shard(index=0),), ledger=book)
    assert not is_overspent(status)
    shown = with_account(status, account_of(status)).budget
    assert shown is not None
    assert (shown.spent, shown.limit) == (0.002, 0.002)
