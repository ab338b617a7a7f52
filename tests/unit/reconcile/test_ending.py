"""Once the final anchor is known, trainers have done their part, however they ended."""

from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.lifecycle import with_late_shards_lost
from cpr_operator.reconcile.pass_ import Done, Draft, Fact, Lost, NoPod
from support.driver import world_in_mid_training

KILLED = Lost(None, Failure(Kind.KILLED, "Error", "the process was killed by SIGKILL", ended=True, exit_code=137))


async def test_trainers_that_are_lost_after_the_final_anchor_are_done_and_shards_are_not() -> None:
    world = await world_in_mid_training(1)
    facts: dict[str, Fact] = {"trainer/0": KILLED, "shard/0": KILLED, "shard/1": NoPod(), "shard/2": NoPod()}
    found = with_late_shards_lost(Draft(world, world.job.status, facts))
    assert found.facts == facts | {"trainer/0": Done("")}
