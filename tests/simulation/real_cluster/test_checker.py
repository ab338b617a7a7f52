"""What a storm's checker says of a job: nothing of one that kept its promise, and each breach by its name."""

from typing import Any, ClassVar

import pytest

from simulation.real_cluster.checker import Done, Look, Promise, after_round, at_the_end
from simulation.real_cluster.failpoints.catalogue import BY_NAME
from simulation.real_cluster.failpoints.fault import Hit
from simulation.real_cluster.timeline import Injection

SHARD, TRAINER = ("job", "shard", 1), ("job", "trainer", 0)
FORCED, DELETED, DOWN = "a pod is deleted by force", "a pod is deleted", "the store is down"
RICH, POOR = Promise(lossless=False), Promise(lossless=True)


def done(name: str, *hit: Any) -> Done:
    return Done(Injection(name, 0, 0, 0), BY_NAME[name], frozenset(hit))


def look(uid: str = "u", lives: tuple[int, int] = (1, 1), lost: tuple[tuple[int, int], ...] = (), **more: Any) -> Look:
    """A job of two shards and a trainer, whose shard 1 and trainer 0 had so many incarnations."""
    shard, trainer = lives
    failures = [{"role": "shard", "index": 1, "incarnation": n, "kind": "Vanished"} for n in range(1, shard)]
    failures += [{"role": "trainer", "index": 0, "incarnation": n, "kind": "Vanished"} for n in range(1, trainer)]
    status = {
        "phase": "Running",
        "shards": [_member("shard", 0, 1), _member("shard", 1, shard)],
        "trainers": [_member("trainer", 0, trainer)],
        "failures": failures,
        "budget": {"spent": 0.0, "limit": 0.3, "reserved": 0, "rollbacks": 0},
        "ledger": {"ranges": [[], list(lost)]},
        "counters": {"generation": 1},
        "progress": {"samples": 100, "totalSamples": 100},
    }
    return Look(uid, status | more)


def _member(role: str, index: int, incarnation: int) -> dict[str, Any]:
    return {"index": index, "incarnation": incarnation, "uid": f"{role}-{index}-{incarnation}"}


def found(after: Look, *injections: Done, promise: Promise = RICH) -> str:
    return "; ".join(after_round("job", promise, look(), after, injections))


class TestARound:
    def test_who_was_struck_may_be_replaced_and_lose_what_is_told(self) -> None:
        assert found(look()) == ""
        assert found(look(lives=(2, 1), lost=((4, 9),)), done(FORCED, SHARD)) == ""

    def test_nobody_else_is_replaced(self) -> None:
        said = found(look(lives=(2, 2)), done(FORCED, SHARD))
        assert said == "trainer/0 was replaced, and nothing hit it"
        assert "shard/1" in found(look(lives=(2, 1)), done(FORCED, ("other", "shard", 1)))
        assert "shard/1" in found(look(lives=(2, 1)), done("the operator is killed"))

    def test_every_replacement_is_told_unless_the_user_asked_for_it(self) -> None:
        silent = look(lives=(2, 1), failures=[])
        assert "no failure tells of it" in found(silent, done(FORCED, SHARD))
        assert found(silent, done("a job is suspended and resumed", SHARD, TRAINER)) == ""

    @pytest.mark.parametrize(
        ("injections", "allowed"),
        [
            ([(FORCED, {SHARD})], True),
            ([(DELETED, {SHARD})], False),
            ([(DELETED, {SHARD}), (DOWN, set())], True),
            ([(DOWN, set())], False),
            ([(FORCED, {("other", "shard", 1)})], False),
        ],
    )
    def test_samples_are_lost_only_to_what_may_cost_them(
        self, injections: list[tuple[str, Hit]], *, allowed: bool
    ) -> None:
        said = found(look(lost=((4, 9),)), *(done(name, *hit) for name, hit in injections))
        assert said == ("" if allowed else "5 sample-shards are lost, which no fault of the round accounts for")

    def test_the_budget_holds_and_nothing_stays_set_aside(self) -> None:
        budget = {"spent": 0.4, "limit": 0.3, "reserved": 0.1}
        assert found(look(budget=budget)) == "0.4 of 0.3 is spent; 0.1 is still set aside"
        spent = {"spent": 0.1, "limit": 0.3, "reserved": 0}
        assert found(look(budget=spent)) == ""
        assert found(look(budget=spent), promise=POOR) == "0.1 is lost, and nothing may be"

    def test_a_job_is_another_one_only_if_it_was_applied_anew(self) -> None:
        assert found(look("v")) == "its resource is another one"
        assert found(look("v", lives=(3, 3)), done("a job is deleted and applied anew", SHARD, TRAINER)) == ""

    def test_a_blow_that_did_not_come_allows_nothing(self) -> None:
        injection = Done(Injection(FORCED, 0, 0, 0), BY_NAME[FORCED], None, "needs a shard")
        assert "nothing hit it" in found(look(lives=(2, 1)), injection)


class TestTheEnd:
    NONE: ClassVar[dict[int, tuple[tuple[int, int], ...]]] = {0: (), 1: ()}

    @staticmethod
    def job(after: Look, **more: Any) -> dict[str, Any]:
        return {"status": after.status | {"phase": "Succeeded"} | more}

    def test_a_job_that_trained_all_and_told_all_is_as_it_should_be(self) -> None:
        assert at_the_end(POOR, self.job(look()), self.NONE) == []
        assert at_the_end(RICH, self.job(look(lost=((4, 9),))), self.NONE | {1: ((4, 9),)}) == []

    def test_what_the_model_misses_and_the_ledger_has_not_is_found(self) -> None:
        (said, more) = at_the_end(RICH, self.job(look(lost=((4, 9),))), self.NONE | {1: ((4, 10),)})
        assert said.startswith("the ledger says")
        assert more.startswith("the model misses {1: ((4, 10),)}")

    def test_what_the_dense_network_lost_is_charged_to_all_shards_and_in_no_manifest(self) -> None:
        everywhere = look(ledger={"ranges": [[(20, 30)], [(4, 9), (20, 30)]]})
        assert at_the_end(RICH, self.job(everywhere), self.NONE | {1: ((4, 9),)}) == []
        assert at_the_end(RICH, self.job(everywhere), self.NONE | {1: ((4, 9), (25, 30))}) == []
        assert at_the_end(RICH, self.job(everywhere), self.NONE) != []

    def test_after_a_rollback_the_ledger_may_have_more_and_not_less(self) -> None:
        again = {"counters": {"generation": 2}}
        assert at_the_end(RICH, self.job(look(lost=((4, 9),)), **again), self.NONE) == []
        assert at_the_end(RICH, self.job(look(), **again), self.NONE | {0: ((4, 9),)}) != []

    def test_what_was_not_trained_is_found(self) -> None:
        few = {"samples": 99, "totalSamples": 100}
        assert at_the_end(POOR, self.job(look(), progress=few), self.NONE) == ["99 of 100 samples are trained"]

    def test_a_failed_job_has_a_reason_that_a_fault_brought_and_says_what_to_do(self) -> None:
        def failed(reason: str, message: str) -> dict[str, Any]:
            said = {"type": "Failed", "status": "True", "reason": reason, "message": message}
            return self.job(look(), phase="Failed", conditions=[said])

        helpful = "No anchor can be read. Run cprjob snapshots verify cpr/job."
        harmed = Promise(lossless=True, refuses={"Damaged"})
        assert at_the_end(harmed, failed("Damaged", helpful), {}) == []
        assert at_the_end(POOR, failed("Damaged", helpful), {}) == [f"it failed: Damaged: {helpful}"]
        assert "does not say what to do" in at_the_end(harmed, failed("Damaged", "oh"), {})[0]
