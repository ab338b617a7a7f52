"""A failure is one failure, however often it is seen, in events, passes and reports; and a drain with grace is none."""

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.control_plane.checker import charged, missing
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import BATCH, TOTAL, Scenario, spec, trained


class RepeatedEvents(Simulation):
    """Repeats every event and every pass that many times."""

    def __init__(self, scenario: Scenario, times: int) -> None:
        self._times = times
        super().__init__(scenario)

    async def _pass(self) -> None:
        for _ in range(self._times):
            await super()._pass()

    def _pod_changed(self, job: str, pod: Any) -> None:
        for _ in range(self._times):
            super()._pod_changed(job, pod)


@settings(max_examples=30)
@given(times=st.integers(1, 5), samples=st.integers(1, 15).map(BATCH.__mul__), shard=st.integers(0, 2))
async def test_failure_repeated_in_events_is_charged_once(times: int, samples: int, shard: int) -> None:
    steps = ((trained(samples), kill("shard", shard)),)
    result = await RepeatedEvents(Scenario("repeated", steps, spec(), replaced=(f"shard/{shard}",)), times).run()
    status = result.status
    (failure,) = status.failures
    lost = missing(result)
    assert charged(status) == lost
    assert failure.lost_samples == len(lost[shard])
    assert status.ledger.running_sample_shards == sum(map(len, lost))
    assert status.policy.alpha == 2
    assert status.budget is not None
    exact = Fraction(len(lost[shard]), 3 * TOTAL)
    # The status shows eight digits, rounded up.
    assert exact <= Fraction(repr(status.budget.spent)) <= exact * (1 + Fraction(1, 10**7))
