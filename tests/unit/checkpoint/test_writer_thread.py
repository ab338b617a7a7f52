"""The thread of a writer, over a store in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, ClassVar

import pytest

from cpr_contract.codec import to_json
from cpr_contract.manifests import RestoreRecord
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.write.save import Committed, GivenUp, Save, SaveFailed, SaveOutcome
from cpr_trainer.checkpoint.write.writer import Writer, WriterThread
from cpr_trainer.store import BucketMissingError, StoreError, StoreFullError, StoreUnreachableError
from support.memory_store import MemoryStore
from support.saves import ShardBench, restore_record

Outcomes = SimpleQueue[SaveOutcome]
FOLDER = "uid/gen-0001/shard-0000/"


class Bench(ShardBench):
    """A shard, and the thread that writes its rows."""

    made: ClassVar[list[Bench]] = []

    def __init__(self, before_put: Callable[[str], None] = lambda _key: None, *, respect_claims: bool = False) -> None:
        super().__init__(MemoryStore(before_put))
        self.news = Outcomes()
        writer = Writer(self.store, self.arena, respect_claims=respect_claims)
        self.writing = WriterThread(writer, self.news.put, random.Random(1))
        self.made.append(self)

    def submit(
        self,
        step: int,
        *,
        may_commit: bool = True,
        base: tuple[Link, ...] = (),
        record: RestoreRecord | None = None,
        **changes: Any,
    ) -> Save:
        self.change(step)
        epoch = self.arena.epochs.now
        capture = self.arena.capture_changes(base[-1].epoch if base else 0)
        save = Save(self.draft(step, base, **changes), capture, epoch, None, None, record)
        if may_commit:
            save.may_commit.set()
        self.writing.submit(save)
        return save

    def next_outcome(self) -> SaveOutcome:
        return self.news.get()


@pytest.fixture(autouse=True)
def _close_threads() -> Iterator[None]:
    yield
    while Bench.made:
        Bench.made.pop().writing.close()


def test_failed_save_is_reported_and_repeated() -> None:
    failures = iter(range(2))

    def full(_key: str) -> None:
        if next(failures, None) is not None:
            raise StoreFullError("No space.", "Make space.")

    bench = Bench(full)
    bench.submit(3)
    outcome = [bench.next_outcome() for _ in range(3)]
    assert [type(one) for one in outcome] == [SaveFailed, SaveFailed, Committed]
    assert isinstance(outcome[0], SaveFailed)
    assert outcome[0].problem.reason == "StoreFull"


@pytest.mark.parametrize("discard", [False, True])
def test_a_newer_save_or_a_rollback_replaces_one_that_cannot_be_written(*, discard: bool) -> None:
    def full(key: str) -> None:
        if "step-000000003" in key:
            raise StoreFullError("No space.", "Make space.")

    bench = Bench(full)
    bench.submit(3)
    assert isinstance(bench.next_outcome(), SaveFailed)
    assert not bench.writing.idle
    if discard:
        bench.writing.submit(None)
        assert bench.writing.idle
    bench.submit(6)
    while not isinstance(outcome := bench.next_outcome(), Committed):
        assert isinstance(outcome, SaveFailed)
    assert (outcome.save.draft.step, outcome.saved.manifest.rows) == (6, 2)


@pytest.mark.parametrize(
    ("error", "stay"),
    [(StoreFullError("No space.", "Make space."), False), (StoreUnreachableError("No answer.", "Wait."), True)],
)
def test_parts_of_a_replaced_save_leave_a_full_store(error: StoreError, *, stay: bool) -> None:
    """The manifest fails. A manifest without an answer may be in the store, so its parts stay."""

    def fail(key: str) -> None:
        if "step-000000003/manifest" in key:
            raise error

    bench = Bench(fail)
    bench.submit(3)
    assert isinstance(bench.next_outcome(), SaveFailed)
    bench.submit(6)
    while not isinstance(bench.next_outcome(), Committed):
        pass
    assert any("step-000000003" in entry.key for entry in bench.store.list("uid/")) == stay


def test_save_is_given_up_when_its_undo_log_is_full() -> None:
    def full(_key: str) -> None:
        raise StoreFullError("No space.", "Make space.")

    bench = Bench(full)
    save = bench.submit(3)
    assert isinstance(bench.next_outcome(), SaveFailed)
    save.capture.undo_log_full = True
    while isinstance(outcome := bench.next_outcome(), SaveFailed):
        pass
    assert isinstance(outcome, GivenUp)
    assert outcome.save is save
    assert outcome.problem.reason == "SaveOutrun"
    assert bench.writing.idle


def missing(_key: str) -> None:
    raise BucketMissingError("The store has no bucket.", "Create it.")


def test_a_flush_waits_for_its_bucket() -> None:
    failures = iter(range(2))
    bench = Bench(lambda key: missing(key) if next(failures, None) is not None else None)
    bench.submit(3, kind="Flush")
    assert [type(bench.next_outcome()) for _ in range(3)] == [SaveFailed, SaveFailed, Committed]


def test_save_on_a_deleted_base_is_not_committed() -> None:
    bench = Bench()
    base = bench.submit(3)
    outcome = bench.next_outcome()
    assert isinstance(outcome, Committed)
    link = Link(outcome.saved.ref, base.epoch, 1, 1)
    bench.store.delete([link.ref.key])
    bench.submit(6, base=(link,))
    outcome = bench.next_outcome()
    assert isinstance(outcome, GivenUp)
    assert link.ref.key in outcome.problem.message
    assert not [entry for entry in bench.store.list("uid/") if entry.key.endswith("manifest.json")]


def test_full_save_writes_a_missing_restore_record() -> None:
    bench = Bench()
    bench.submit(3, record=restore_record(1))
    assert isinstance(bench.next_outcome(), Committed)
    assert [choice.step for choice in bench.choices()] == [3, 0], "without it the save has no author"
    bench.submit(6, record=restore_record(1))
    assert isinstance(bench.next_outcome(), Committed), "an existing record is left unchanged"


@pytest.mark.parametrize("damaged", [b"", b'{"contract": 2, "job_u'])
def test_full_save_replaces_an_unreadable_restore_record(damaged: bytes) -> None:
    bench = Bench()
    bench.store.put(FOLDER + "inc-0001/origin.json", damaged)
    bench.submit(3, record=restore_record(1))
    assert isinstance(bench.next_outcome(), Committed)
    assert [choice.step for choice in bench.choices()] == [3, 0]


@pytest.mark.parametrize(
    ("key", "data", "reason"),
    [
        (
            "inc-0001/origin.json",
            to_json(restore_record(1, step=2)).encode(),
            "ObjectExists",
        ),  # another process recorded it
        ("claim-0002", b"", "Superseded"),  # another incarnation restores
        (None, b"", "BucketMissing"),
    ],
)
def test_save_is_given_up_with_its_reason(key: str | None, data: bytes, reason: str) -> None:
    bench = Bench(missing if key is None else lambda _key: None, respect_claims=True)
    if key is not None:
        bench.store.put(FOLDER + key, data)
    save = bench.submit(3, record=restore_record(1))
    outcome = bench.next_outcome()
    assert isinstance(outcome, GivenUp)
    assert (outcome.save, outcome.problem.reason) == (save, reason)
    assert bench.writing.idle


def restart_writer(bench: Bench) -> None:
    """The ended thread has reported its save; its process has not recorded that."""
    bench.writing.close()
    bench.writing = WriterThread(Writer(bench.store, bench.arena, process_number=2), bench.news.put, random.Random(2))


def test_save_committed_by_the_last_process_counts_for_the_next() -> None:
    bench = Bench()
    bench.submit(3)
    first = bench.next_outcome()
    assert isinstance(first, Committed)
    restart_writer(bench)
    bench.submit(3)
    again = bench.next_outcome()
    assert isinstance(again, Committed)
    assert again.saved == first.saved, "by its digest and its parts"


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("Flush", {"applied": (3, 4)}), ("Flush", {"lost": ((64, 128),)}), ("Priority", {})],
    ids=["more pushes", "a loss", "other rows, perhaps"],
)
def test_other_save_of_that_name_by_the_last_process_does_not_count_for_the_next(
    kind: str, changes: dict[str, Any]
) -> None:
    bench = Bench()
    bench.submit(3, kind=kind)
    assert isinstance(bench.next_outcome(), Committed)
    restart_writer(bench)
    bench.submit(3, kind=kind, **changes)
    outcome = bench.next_outcome()
    assert isinstance(outcome, GivenUp)
    assert outcome.problem.reason == "ObjectExists"


def test_unexpected_error_is_reported() -> None:
    def broken(_key: str) -> None:
        raise ZeroDivisionError

    bench = Bench(broken)
    bench.submit(3)
    assert isinstance(bench.next_outcome(), ZeroDivisionError)


def test_manifest_waits_for_permission() -> None:
    bench = Bench()
    idle = [bench.writing.idle]
    save = bench.submit(3, may_commit=False)
    while not bench.store.list("uid/"):
        pass
    assert not [entry for entry in bench.store.list("uid/") if entry.key.endswith("manifest.json")]
    idle.append(bench.writing.idle)
    save.may_commit.set()
    assert isinstance(bench.next_outcome(), Committed)
    assert [*idle, bench.writing.idle] == [True, False, True]
