"""Trainers come and go on the real cluster, while a job trains: all stop at one step and go on from there."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import (
    MANY_EPOCHS,
    NO_SAVES,
    Run,
    account,
    failures,
    ledger,
    same_auc,
    verify,
    verify_members,
)

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(300, func_only=True)]


def test_a_third_trainer_joins_and_a_shard_is_killed_and_one_trainer_is_left(
    cluster: Cluster, space: Space, calm: dict[str, Any]
) -> None:
    run = Run.start(space, "elastic", snapshots__interval=NO_SAVES)
    run.slow_down()  # a quiet machine would train all of one epoch while the third trainer comes
    run.reach(0.25)
    space.patch("elastic", '{"spec":{"trainers":{"replicas":3}}}')
    grown = run.wait("trains as three", lambda s: s.get("phase") == "Running" and len(s["trainers"]) == 3, within_s=120)
    assert {pod.index for pod in space.pods(job="elastic", role="trainer")} == {0, 1, 2}
    assert grown["counters"]["generation"] == 2
    run.before = run.uids()
    run.slow_down()
    run.reach(0.05, after=grown["anchors"][-1])
    cluster.nodes.signal(run.pod("shard", 1), "KILL")
    recovered = run.wait(
        "recovers", lambda s: any(f.get("recoverySeconds") for f in s.get("failures", [])), within_s=60
    )
    space.patch("elastic", '{"spec":{"trainers":{"replicas":1}}}')
    at_work = {"Running", "Finishing", "Succeeded"}  # the rest is short
    run.wait("trains as one", lambda s: s.get("phase") in at_work and len(s["trainers"]) == 1, within_s=120)
    assert {pod.index for pod in space.pods(job="elastic", role="trainer")} == {0}
    run.before = run.uids()
    status = run.finish()
    verify(run, status, replaced=set())
    assert [failure[:2] for failure in failures(status)] == [("shard", 1)]
    assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (3, 0)
    assert ledger(recovered)[1]
    assert ledger(status) == ledger(recovered), "what was lost before an anchor stays charged"
    assert account(cluster.store, status) == {0: (), 1: (), 2: ()}, "and nothing is lost after it"
    assert same_auc(status, calm)


def test_a_third_trainer_joins_and_leaves_in_a_shadow_mode(cluster: Cluster, space: Space) -> None:
    # They meet where the fastest of them is. On a busy machine that may be tens of thousands of samples ahead of the
    # others, which is the end of a short job. So this one is long and does not end: dist/test_meeting compares models.
    run = Run.start(space, "shadow", data__epochs=MANY_EPOCHS, trainers__denseSync="ShadowMA")
    scale_to(run, 3, generation=2)
    scale_to(run, 2, generation=3)
    status = run.status()
    verify_members(run, status, replaced=())
    assert not any(ledger(status).values())
    assert account(cluster.store, status) == {0: (), 1: (), 2: ()}


def scale_to(run: Run, trainers: int, generation: int) -> None:
    """Give a job in a shadow mode other trainers; wait until these train on from where those before met."""
    before = run.trained()
    run.space.patch(run.name, f'{{"spec":{{"trainers":{{"replicas":{trainers}}}}}}}')
    status = run.wait(
        f"trains as {trainers}", lambda s: s.get("phase") == "Running" and len(s["trainers"]) == trainers, within_s=120
    )
    met = status["anchors"][-1]["samples"]
    assert met >= before
    assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (generation, 0)
    assert {pod.index for pod in run.space.pods(job=run.name, role="trainer")} == set(range(trainers))
    run.before = run.uids()
    until("they train on from where the others met", lambda: run.trained() > met, 60)
