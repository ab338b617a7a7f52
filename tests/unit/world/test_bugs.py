"""Bugs that are planted one at a time: so many seeds of a world find each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.exchange.link import Link
from cpr_trainer.exchange.outbox import Outbox, Push
from cpr_trainer.parity.rebuild import common_moment
from cpr_trainer.parity.store import ParityStore
from cpr_trainer.shard.catch_up import CatchUp
from cpr_trainer.shard.kept import Page
from cpr_trainer.shard.pushes import Fate
from cpr_trainer.shard.service import Service
from cpr_trainer.tables.arena import Arena
from support.world.plan import Plan
from support.world.ride import ride_to_the_end

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """How it is planted, and in which jobs; `seeds` find it."""

    plant: Callable[[Patch], None]
    seeds: int
    alter: Callable[[Plan], Plan] = lambda plan: plan


def with_replay(plan: Plan) -> Plan:
    """Trainers keep all that no save holds."""
    return replace(plan, job=replace(plan.job, replay_bytes=1 << 20))


def with_trainers(plan: Plan) -> Plan:
    """Several trainers, with replay."""
    job = replace(plan.job, replay_bytes=1 << 20, trainers=3)
    return replace(plan, job=replace(job, data=replace(job.data, batch_size=6, samples=6 * plan.last_step)))


def with_parity(plan: Plan) -> Plan:
    """Four shards, each two of which have a common parity, and rare saves."""
    return replace(plan, job=replace(plan.job, replay_bytes=1 << 20, shards=4, parity_shards=2), interval_s=4.0)


def with_mirrors(plan: Plan) -> Plan:
    """Three shards, each with a mirror, and rare saves."""
    return replace(plan, job=replace(plan.job, replay_bytes=1 << 20, shards=3, parity_shards=1), interval_s=4.0)


def with_priority_saves(plan: Plan) -> Plan:
    """What the operator refuses: rows are saved between cuts, and pushed again after a restore."""
    rules = replace(plan.job.snapshots, strategy="MFU", fraction=0.5)
    job = replace(plan.job, replay_bytes=1 << 20, parity_shards=0, snapshots=rules)
    return replace(plan, job=job, priority_interval_s=0.2)


def wrap(patch: Patch, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper` around a method; it gets that as its first argument."""
    before = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: wrapper(before, *arguments, **options))


def forget_at_the_acknowledgement(patch: Patch) -> None:
    def retain(before: Callable[..., None], outbox: Outbox, push: Push) -> None:
        before(outbox, replace(push, protected=False))

    wrap(patch, Outbox, "_retain", retain)


def wait_for_no_replay(patch: Patch) -> None:
    patch.setattr(CatchUp, "begun", lambda _trainers: CatchUp())


def leave_a_push_half_done(patch: Patch) -> None:
    patch.setattr(Arena, "put_again", lambda _arena: None)


def take_parts_of_flushes(patch: Patch) -> None:
    def add(before: Callable[..., None], store: ParityStore, flush: Any) -> None:
        (delta, *rest) = flush.deltas
        some = replace(delta, at=delta.at[:5], change=delta.change[:5])
        before(store, replace(flush, deltas=(some, *rest)))

    wrap(patch, ParityStore, "_add", add)


def mix_moments(patch: Patch) -> None:
    rebuild = sys.modules[common_moment.__module__]
    patch.setattr(rebuild, "common_moment", lambda standings: standings[0].point.moment)
    wrap(patch, ParityStore, "take_back", lambda _before, _store, _part, _moment: True)
    patch.setattr(rebuild, "_chosen", lambda neighbours, *_rules: neighbours.standings())


def pass_over_claims(patch: Patch) -> None:
    patch.setattr(sys.modules[Writer.__module__], "check_claims", lambda *_: None)


def keep_pushes_over_a_rollback(patch: Patch) -> None:
    def start_over(before: Callable[..., None], link: Link) -> None:
        pushes, link.pushes = link.pushes, Outbox()
        before(link)
        link.pushes = pushes

    wrap(patch, Link, "start_over", start_over)


def keep_every_other_push(patch: Patch) -> None:
    numbers = count()

    def write(before: Callable[..., None], page: Page, kept: Any) -> None:
        if next(numbers) % 2:
            before(page, kept)

    wrap(patch, Page, "write", write)


def forget_what_parity_alone_holds(patch: Patch) -> None:
    def note(before: Callable[..., None], link: Link, header: Any) -> None:
        before(link, header)
        link.pushes.forget(link.safe)

    wrap(patch, Link, "_note", note)


def apply_whatever_comes(patch: Patch) -> None:
    service = sys.modules[Service.__module__]

    def fate(before: Callable[..., Fate], *arguments: Any, **options: Any) -> Fate:
        found = before(*arguments, **options)
        return Fate.APPLY if found is Fate.DROP else found

    wrap(patch, service, "fate_of", fate)


BUGS = {
    "forget at the acknowledgement": Bug(forget_at_the_acknowledgement, 10, with_replay),
    "no barrier until all have caught up": Bug(wait_for_no_replay, 20, with_trainers),
    "a push that was half done stays so": Bug(leave_a_push_half_done, 20),
    "a flush is taken in parts": Bug(take_parts_of_flushes, 10, with_parity),
    "parts of a shard as of different moments": Bug(mix_moments, 30, with_parity),
    "a late commit counts, although a successor has chosen": Bug(pass_over_claims, 60, with_replay),
    "priority saves beside replay": Bug(lambda _: None, 20, with_priority_saves),
    "pushes outlive a rollback": Bug(keep_pushes_over_a_rollback, 40, with_replay),
    "a push is acknowledged before it is kept": Bug(keep_every_other_push, 20),
    "what only parity holds is forgotten": Bug(forget_what_parity_alone_holds, 30, with_mirrors),
    "a push is applied each time that it comes": Bug(apply_whatever_comes, 10),
}


@pytest.mark.parametrize("name", BUGS)
def test_so_many_seeds_find_a_planted_bug(name: str, monkeypatch: Patch) -> None:
    bug = BUGS[name]
    bug.plant(monkeypatch)
    found = None
    for seed in range(bug.seeds):
        try:
            ride_to_the_end(seed, bug.alter)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is not seen without the bug
            found = error
            break
    assert found is not None, f"{bug.seeds} seeds ended well"
