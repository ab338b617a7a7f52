"""The job that is simulated: its size, its failures, its costs. All times are seconds of training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cpr_operator.policy.inputs import REPLAY_GUESS, Costs

HOUR_S = 3600.0
MINUTE_S = 60.0
#: What a save of the snapshot engine keeps training waiting for: the rows are copied while training goes on.
ASYNC_STALL_S = 3.0
#: How old parity is when a shard is lost, on average: it is flushed twice a second, and a flush takes its time.
FLUSH_AGE_S = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """A job of `total_s` seconds of useful training on `shards` shards, of which each failure takes `lost`.

    Failures come every `mtbf_s` of training on average. `limit` is the accuracy budget, as a portion of all samples.
    `told_mtbf_s` and `told_lost` are what strategies are told of the failures, right or wrong. `replay` is rho, the
    seconds that it takes to push one second of training again to lost shards. `data_shards` is k, of which each parity
    is, and `parity_cost` the portion of the training time that flushes to it take.
    """

    total_s: float
    shards: int
    lost: int
    mtbf_s: float
    limit: float
    costs: Costs
    told_mtbf_s: float
    told_lost: float
    replay: float = REPLAY_GUESS
    data_shards: int = 1
    parity_cost: float = 0.0

    @property
    def budget_s(self) -> float:
        """The budget in shard-seconds: what one shard trains in a second is one of `total_s * shards`."""
        return self.limit * self.total_s * self.shards

    @property
    def asynchronous(self) -> Job:
        """The same job with asynchronous saves: training waits for moments, and a save counts when it is written."""
        costs = self.costs
        saves = replace(costs, save_stall_s=ASYNC_STALL_S, commit_s=costs.commit_s + costs.save_stall_s)
        return replace(self, costs=saves)
