"""The hard promise, under storms of failures: no status ever says that more is lost than the budget allows, and what it
says covers all that the model misses.
"""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from cpr_operator.api.status import Status
from support.scenarios import Life
from support.storms import Storm, StormDriver, charged, missing, storms


def failures_counted(life: Life) -> float:
    alpha = life.status.policy.alpha
    return 0.0 if alpha is None else alpha - 1.0  # what the user expected weighs one


def failures_seen(life: Life) -> int:
    """Recoveries that took the state of a shard, as the written statuses show them: each has one end."""
    statuses = [Status.model_validate(document) for document in life.cluster.statuses]
    return sum(
        bool(before.recovery and before.recovery.lost_shards) or any(s.state == "Lost" for s in after.shards)
        for before, after in pairwise(statuses)
        if _interrupted(before) and not _interrupted(after) and after.phase not in {"Succeeded", "Failed"}
    )


def _interrupted(status: Status) -> bool:
    return status.recovery is not None or status.phase == "Suspending"


@pytest.mark.timeout(600)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(storm=storms())
def test_no_storm_makes_a_job_lose_more_than_it_may(storm: Storm) -> None:
    life = asyncio.run(StormDriver(storm).run())
    assert life.status.phase == "Succeeded"
    lost, known = missing(life), charged(life.status)
    assert sum(map(len, lost)) <= life.status.ledger.limit_sample_shards
    for shard, samples in enumerate(lost):
        assert samples <= known[shard], f"shard {shard} misses samples that were never charged"
    assert failures_counted(life) == failures_seen(life)
