"""Scenarios: what may happen to a job, and where it ends."""

from __future__ import annotations

from simulation.control_plane.failpoints import damage_anchor, damage_save, kill, kill_all, kill_spares, quota
from simulation.control_plane.kueue import admit, delete_workload, no_workload, preempt, waits
from simulation.control_plane.workload import (
    Scenario,
    after,
    both,
    leader_ended,
    meeting,
    phase,
    reapply,
    restoring,
    resume_with,
    runs,
    scale,
    spec,
    suspend,
    trained,
)

ALL_MEMBERS = ("shard/0", "shard/1", "shard/2", "trainer/0", "trainer/1")
HALF = trained(900)
ONE_TRAINER = spec(trainers__replicas=1)
SHADOW = spec(trainers__denseSync="ShadowMA")
SPARES = spec(shards__spares=1)
TIGHT = spec(accuracyBudget__portionOfLostSamples=0.01)

SCENARIOS = (
    Scenario("no failure"),
    Scenario("a shard is killed", ((HALF, kill("shard", 1)),), replaced=("shard/1",)),
    Scenario("a shard is killed before anything is trained", ((runs(1), kill("shard", 1)),), replaced=("shard/1",)),
    Scenario("a trainer is killed", ((HALF, kill("trainer", 1)),), replaced=("trainer/1",)),
    Scenario("the leader is killed", ((HALF, kill("trainer", 0)),), replaced=("trainer/0",)),
    Scenario("the only trainer is killed", ((HALF, kill("trainer", 0)),), ONE_TRAINER, replaced=("trainer/0",)),
    Scenario(
        "two shards are killed at once",
        ((HALF, both(kill("shard", 0), kill("shard", 2))),),
        replaced=("shard/0", "shard/2"),
    ),
    Scenario(
        "a shard is killed again while it restores",
        ((HALF, kill("shard", 1)), (restoring(1), kill("shard", 1))),
        replaced=("shard/1",),
    ),
    Scenario(
        "a shard and the leader are killed at once",
        ((HALF, both(kill("shard", 1), kill("trainer", 0))),),
        replaced=("shard/1", "trainer/0"),
    ),
    Scenario(
        "a shard and the only trainer are killed at once",
        ((HALF, both(kill("shard", 1), kill("trainer", 0))),),
        ONE_TRAINER,
        replaced=("shard/1", "trainer/0"),
    ),
    Scenario("a shard is drained", ((HALF, lambda c: c.drain("shard", 1)),), replaced=("shard/1",)),
    Scenario("a trainer is drained", ((HALF, lambda c: c.drain("trainer", 1)),), replaced=("trainer/1",)),
    Scenario(
        "the only trainer is drained", ((HALF, lambda c: c.drain("trainer", 0)),), ONE_TRAINER, replaced=("trainer/0",)
    ),
    Scenario("a shard vanishes", ((HALF, lambda c: c.drain("shard", 1, force=True)),), replaced=("shard/1",)),
    Scenario("a shard hangs", ((HALF, lambda c: c.stop("shard", 1)),), replaced=("shard/1",)),
    Scenario(
        "a shard hangs on the only node",
        (
            (after(0), lambda c: setattr(c, "nodes", ("node-0",))),
            (HALF, lambda c: c.stop("shard", 1)),
        ),
        replaced=("shard/1",),
    ),
    Scenario("the leader hangs", ((HALF, lambda c: c.stop("trainer", 0)),), replaced=("trainer/0",)),
    Scenario("a shard's node is lost", ((HALF, lambda c: c.lose_node("shard", 1)),), replaced=("shard/1",)),
    Scenario(
        "a shard is killed, and a spare is there",
        ((HALF, kill("shard", 1)),),
        SPARES,
        replaced=("shard/1",),
    ),
    Scenario(
        "two shards are killed, and one spare is there",
        ((HALF, both(kill("shard", 0), kill("shard", 2))),),
        SPARES,
        replaced=("shard/0", "shard/2"),
    ),
    Scenario(
        "a shard is drained, and a spare is there",
        ((HALF, lambda c: c.drain("shard", 1)),),
        SPARES,
        replaced=("shard/1",),
    ),
    Scenario(
        "a spare is killed while it restores as a shard",
        ((HALF, kill("shard", 1)), (restoring(1), kill("shard", 1))),
        SPARES,
        replaced=("shard/1",),
    ),
    Scenario(
        "spares die, and the job goes on",
        ((trained(500), kill_spares), (trained(1300), kill("shard", 1))),
        spec(shards__spares=2),
        replaced=("shard/1",),
    ),
    Scenario(
        "suspended and resumed with a spare",
        ((HALF, suspend(value=True)), (phase("Suspended"), suspend(value=False))),
        spec(shards__spares=1, accuracyBudget__portionOfLostSamples=0.01),
        replaced=ALL_MEMBERS,
    ),
    Scenario("a loss does not fit", ((HALF, kill("shard", 1)),), TIGHT, replaced=("shard/1",)),
    Scenario(
        "the second of two losses does not fit",
        ((HALF, kill("shard", 1)), (trained(1100), kill("shard", 1))),
        spec(accuracyBudget__portionOfLostSamples=0.06),
        replaced=("shard/1",),
    ),
    Scenario("full recovery", ((HALF, kill("shard", 1)),), spec(recovery__mode="Full"), replaced=("shard/1",)),
    Scenario(
        "no budget",
        ((HALF, kill("shard", 1)),),
        spec(accuracyBudget__portionOfLostSamples=0),
        replaced=("shard/1",),
    ),
    Scenario(
        "the restart limit is reached",
        ((trained(500), kill("shard", 1)), (trained(1300), kill("shard", 1))),
        spec(failurePolicy__restartLimit={"count": 1, "windowSeconds": 3600}),
        phase="Failed",
        replaced=("shard/1",),
    ),
    Scenario(
        "data that is none",
        (
            (
                HALF,
                lambda c: c.exit_with("trainer", 0, 21, '{"reason":"BadLine","message":"line 3","remedy":"mend it"}'),
            ),
        ),
        phase="Failed",
    ),
    Scenario(
        "suspended and resumed",
        ((HALF, suspend(value=True)), (phase("Suspended"), suspend(value=False))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed while it is being suspended",
        ((HALF, suspend(value=True)), (phase("Suspending"), suspend(value=False))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "suspended again before it trains again",
        (
            (HALF, suspend(value=True)),
            (phase("Suspended"), suspend(value=False)),
            (restoring(1), suspend(value=True)),
            (phase("Suspended"), suspend(value=False)),
        ),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "suspended when it is all but trained",
        (
            (trained(1800), suspend(value=True)),
            (lambda c: phase("Suspended")(c) or phase("Succeeded")(c), suspend(value=False)),
        ),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "suspended when it is trained",
        ((leader_ended, suspend(value=True)),),
    ),
    Scenario(
        "suspended before anything is trained",
        ((runs(1), suspend(value=True)), (phase("Suspended"), suspend(value=False))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "suspended while a shard hangs",
        (
            (HALF, both(lambda c: c.stop("shard", 1), suspend(value=True))),
            (phase("Suspended"), suspend(value=False)),
        ),
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "suspended while a shard's node is lost",
        (
            (HALF, both(lambda c: c.lose_node("shard", 1), suspend(value=True))),
            (phase("Suspended"), suspend(value=False)),
        ),
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "suspended while a shard restores",
        ((HALF, kill("shard", 1)), (restoring(1), suspend(value=True)), (phase("Suspended"), suspend(value=False))),
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards",
        ((HALF, suspend(value=True)), (phase("Suspended"), resume_with(2))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards, then with more",
        (
            (trained(500), suspend(value=True)),
            (phase("Suspended"), resume_with(1)),
            (trained(1300), suspend(value=True)),
            (phase("Suspended"), resume_with(3)),
        ),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards after a loss",
        ((trained(500), kill("shard", 1)), (trained(1100), suspend(value=True)), (phase("Suspended"), resume_with(2))),
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with more shards, of which one is killed at once",
        (
            (HALF, suspend(value=True)),
            (phase("Suspended"), resume_with(3)),
            (restoring(2), kill("shard", 2)),
        ),
        spec(shards__replicas=2),
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards after one did not save",
        (
            (HALF, both(lambda c: c.stop("shard", 1), suspend(value=True))),
            (phase("Suspended"), resume_with(2)),
        ),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards from an anchor that is damaged",
        ((trained(1300), suspend(value=True)), (phase("Suspended"), both(damage_anchor, resume_with(2)))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards before anything is trained",
        ((runs(1), suspend(value=True)), (phase("Suspended"), resume_with(2))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "resumed with fewer shards, suspended before it trains, and resumed with more",
        (
            (HALF, suspend(value=True)),
            (phase("Suspended"), resume_with(2)),
            (restoring(1), suspend(value=True)),
            (phase("Suspended"), resume_with(3)),
        ),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario("more trainers", ((HALF, scale(3)),), TIGHT, replaced=ALL_MEMBERS),
    Scenario(
        "fewer trainers, then more", ((trained(500), scale(1)), (trained(1300), scale(3))), TIGHT, replaced=ALL_MEMBERS
    ),
    Scenario(
        "more trainers, and back before all have stopped",
        ((HALF, scale(3)), (phase("Suspending"), scale(2))),
        TIGHT,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "more trainers after a loss",
        ((trained(500), kill("shard", 1)), (trained(1100), scale(3))),
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "fewer trainers, and fewer shards, after a shard was lost",
        (
            (trained(500), kill("shard", 1)),
            (trained(1100), both(scale(1), suspend(value=True))),
            (phase("Suspended"), resume_with(2)),
        ),
        replaced=ALL_MEMBERS,
    ),
    Scenario("more trainers in a shadow mode", ((HALF, scale(3)),), SHADOW, replaced=ALL_MEMBERS),
    Scenario(
        "more trainers in a shadow mode, then as many as before",
        ((trained(500), scale(3)), (trained(1300), scale(2))),
        SHADOW,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "more trainers in a shadow mode, and a shard is killed while they meet",
        ((trained(700), both(scale(3), kill("shard", 1))),),
        SHADOW,
        replaced=ALL_MEMBERS,
    ),
    Scenario(
        "more trainers in a shadow mode, and back before all have met",
        ((trained(700), both(scale(3), lambda c: c.stop("trainer", 1))), (meeting, scale(2))),
        SHADOW,
        replaced=("trainer/1",),
    ),
    Scenario(
        "more trainers in a shadow mode, named while it is suspended",
        ((HALF, suspend(value=True)), (phase("Suspended"), both(scale(3), suspend(value=False)))),
        SHADOW,
        replaced=ALL_MEMBERS,
    ),
    Scenario("in a queue", ((waits(), admit),), queue="team"),
    Scenario(
        "preempted in a queue",
        ((waits(), admit), (HALF, preempt), (waits(), admit)),
        TIGHT,
        replaced=ALL_MEMBERS,
        queue="team",
    ),
    Scenario(
        "preempted in a queue before anything is trained",
        ((waits(), admit), (runs(1), preempt), (waits(), admit)),
        TIGHT,
        replaced=ALL_MEMBERS,
        queue="team",
    ),
    Scenario(
        "more trainers in a queue",
        ((waits(), admit), (HALF, scale(3)), (waits(3), admit)),
        TIGHT,
        replaced=ALL_MEMBERS,
        queue="team",
    ),
    Scenario(
        "suspended in a queue",
        ((waits(), admit), (HALF, suspend(value=True)), (no_workload, suspend(value=False)), (waits(), admit)),
        TIGHT,
        replaced=ALL_MEMBERS,
        queue="team",
    ),
    Scenario(
        "the Workload is deleted",
        ((waits(), admit), (HALF, delete_workload), (waits(), admit)),
        TIGHT,
        replaced=ALL_MEMBERS,
        queue="team",
    ),
    Scenario("deleted and applied again", ((HALF, reapply),), replaced=ALL_MEMBERS),
    Scenario(
        "a replacement is refused for a while",
        ((HALF, both(quota(0), kill("shard", 1))), (after(8), quota(None))),
        replaced=("shard/1",),
    ),
    Scenario(
        "unschedulable for ever",
        ((after(0), lambda c: setattr(c, "unschedulable", "0/3 nodes are available")),),
        phase="Failed",
    ),
    Scenario("everybody is killed", ((HALF, kill_all),), replaced=ALL_MEMBERS),
    Scenario(
        "the newest save is damaged",
        ((HALF, both(damage_save(1), kill("shard", 1))),),
        replaced=("shard/1",),
    ),
    Scenario(
        "the newest anchor is damaged",
        (
            (
                trained(1300),
                both(damage_anchor, kill("shard", 1)),
            ),
        ),
        TIGHT,
        replaced=("shard/1",),
    ),
)
