"""A published chain: each model that a follower makes of it equals a whole export of its anchor, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.roster import AnchorRef
from cpr_contract.spec import PublishSpec
from cpr_trainer.checkpoint.anchor import pruning
from cpr_trainer.checkpoint.anchor.pruning import Pruner, needed_by
from cpr_trainer.publish import decisions
from cpr_trainer.publish.publisher import Publisher
from cpr_trainer.store import StoreUnreachableError
from cprjob_serving import Follower
from cprjob_serving.chain import Entry, entry_key
from support.memory_store import MemoryStore
from support.published_chain import Case, StoreSource
from support.published_job import EVERY_STEP, PublishedJob, files_of, static


def test_base_and_deltas_are_the_exports_of_their_anchors(case: Case) -> None:
    case.job.train_and_save(4)
    base = case.publish()
    assert (base.sequence, base.base, base.step) == (1, 1, 4)
    case.check()
    removed = 0
    for sequence in range(2, 6):
        case.job.train_and_save(2, full=sequence == 4)
        entry = case.publish()
        assert (entry.sequence, entry.base) == (sequence, 1)
        case.check()
        delta = json.loads(case.target.objects[next(f.key for f in entry.files if f.path == "delta.json")])
        assert delta["rows"]["a"] < 40, "a full save is filtered by digests"
        removed += delta["removed"]["b"] + delta["removed"]["d"]
    assert removed, "keys have left the tables"


def test_delta_after_a_rollback_has_the_rows_of_both_branches(case: Case) -> None:
    case.job.train_and_save(4)
    fork = case.job.train_and_save(6)
    case.publish()
    case.job.train_and_save(2)
    case.publish()
    case.job.train_and_save(2)
    lost = case.publish()
    case.check()
    case.job.roll_back(fork)
    case.job.train_and_save(1)
    entry = case.publish()
    assert (entry.generation, entry.step, lost.step) == (2, 11, 14)
    assert entry.sequence == lost.sequence + 1
    assert not entry.is_base
    case.check()


def test_keys_that_expired_in_undone_steps_are_published_again(case: Case) -> None:
    """No save of either branch has them: the step alone decides."""
    case.job.train_and_save(4)
    case.publish()
    fork = case.job.train_and_save(1)
    case.publish()
    case.job.step += 6
    case.job.anchor()
    case.publish()
    case.check()
    case.job.roll_back(fork)
    case.job.train_and_save(1)
    case.publish()
    case.check()


def test_delta_after_a_rollback_of_static_tables_has_the_rows_of_both_branches(case: Case) -> None:
    case.job = PublishedJob(MemoryStore(), alter=static)
    fork = case.job.train_and_save(2)
    case.publish()
    case.job.train_and_save(3)
    case.publish()
    case.job.roll_back(fork)
    case.job.train_and_save(1)
    assert not case.publish().is_base
    case.check()


def test_delta_to_another_number_of_shards(case: Case) -> None:
    case.job.train_and_save(4)
    case.publish()
    case.job.roll_back(case.job.anchors[-1], shards=3)
    case.job.train_and_save(2, full=True)
    assert not case.publish().is_base
    case.check()


def test_next_process_continues_the_chain(case: Case) -> None:
    """It has neither digests nor the anchor that the newest entry is of."""
    case.job.train_and_save(4)
    for _ in range(2):
        case.job.train_and_save()
        case.publish()
    deleted = case.job.anchors[-1].key.rpartition("/")[0]
    case.job.train_and_save()
    case.job.store.delete([key for key in case.job.store.objects if key.startswith(deleted)])
    case.publisher = None
    entry = case.publish()
    assert (entry.sequence, entry.base) == (3, 1)
    case.check()
    case.job.train_and_save()
    case.publish()
    case.check()


def test_chain_is_compacted_and_old_entries_go_with_their_files(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "LONGEST_CHAIN", 2)
    bases = []
    for _ in range(8):
        case.job.train_and_save()
        if (entry := case.publish(replace(EVERY_STEP, keep=2))).is_base:
            bases.append(entry.sequence)
        case.check()
    assert bases == [1, 4, 7]
    entries = [key for key in case.target.objects if key.startswith("chain/0")]
    assert entries == [entry_key(number) for number in range(4, 9)]
    named = {file.key for key in entries for file in Entry.of_bytes(case.target.objects[key], key).files}
    assert named == {key for key in case.target.objects if key.startswith("files/")}
    beginner = Follower("memory:", case.folder / "beginner", source=StoreSource(case.target))
    beginner.update()
    assert files_of(beginner.model.folder) == files_of(case.follower.model.folder)
    beginner.stop()


def test_job_that_is_created_again_begins_a_new_base(case: Case) -> None:
    case.job.train_and_save()
    earlier = replace(case.publish(), job_uid="that of the job before")
    case.target.objects[entry_key(1)] = earlier.to_bytes()
    case.publisher = case.job.publisher(case.target, case.folder / "scratch")
    entry = case.publish()
    assert (entry.sequence, entry.base, entry.anchor) == (2, 2, earlier.anchor)
    case.check()


def test_publisher_begins_again_after_an_outage_of_the_target(case: Case, tmp_path: Path) -> None:
    case.job.train_and_save()
    publisher = Publisher(case.job.store, case.target, case.job.job, EVERY_STEP, tmp_path / "own", lambda: 1000.0)

    def unavailable(_prefix: str) -> Any:
        raise StoreUnreachableError("the target", "it is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case.target, "list", unavailable)
        with pytest.raises(StoreUnreachableError):
            publisher.begin()
    publisher.begin()
    assert publisher.look()
    publisher.close()


def test_entries_that_are_deleted_need_not_be_readable(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "LONGEST_CHAIN", 2)
    for _ in range(3):
        case.job.train_and_save()
        case.publish(replace(EVERY_STEP, keep=1))
    case.target.objects[entry_key(2)] = b"damaged"
    case.job.train_and_save()
    case.publish(replace(EVERY_STEP, keep=1))
    assert [key for key in case.target.objects if key.startswith("chain/0")] == [entry_key(4)]


class Death(BaseException):
    """The end of the process."""


class Mortal(MemoryStore):
    """A store with a process that dies in a write or before a deletion, as `lives` counts them down."""

    def __init__(self, objects: dict[str, bytes], lives: list[int]) -> None:
        super().__init__(self.begin_to_write)
        self.objects, self.lives = dict(objects), lives

    def begin_to_write(self, key: str) -> None:
        self.objects[f"{key}.writing-0"] = b"{"
        self.pay()
        del self.objects[f"{key}.writing-0"]

    def pay(self) -> None:
        self.lives[0] -= 1
        if self.lives[0] < 0:
            raise Death

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.pay()
            super().delete([key])


@pytest.mark.parametrize("longest", [2, 64], ids=["base", "delta"])
def test_publisher_may_be_killed_in_any_write(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    """The next one continues; a follower has the model before or the model after at any time."""
    monkeypatch.setattr(decisions, "LONGEST_CHAIN", longest)
    spec = replace(EVERY_STEP, keep=1)
    for _ in range(3):
        case.job.train_and_save()
        case.publish(spec)
    before = case.job.export(case.job.anchors[-1].key, tmp_path / "before")
    newest = case.job.train_and_save()
    after = case.job.export(newest.key, tmp_path / "after")
    store, target = dict(case.job.store.objects), dict(case.target.objects)
    for writes in range(1000):
        lives = [writes]
        case.job.store, case.target = Mortal(store, lives), Mortal(target, lives)
        follower = Follower("memory:", tmp_path / f"f-{writes}", source=StoreSource(case.target))
        follower.update()
        assert files_of(follower.model.folder) == before
        died = False
        try:
            case.job.publisher(case.target, tmp_path / "scratch", spec).look()
        except Death:
            died = True
        follower.update()
        assert files_of(follower.model.folder) == (before if follower.sequence == 3 else after)
        lives[0] = 1000
        case.job.publisher(case.target, tmp_path / "scratch", spec).look()
        follower.update()
        assert follower.sequence == 4
        assert files_of(follower.model.folder) == after
        follower.stop()
        if not died:
            break
    assert writes > len(after), "each file, and more"


def test_two_publishers_write_one_chain(case: Case, tmp_path: Path) -> None:
    case.job.train_and_save(4)
    first, second = (case.job.publisher(case.target, tmp_path / name) for name in "ab")
    written: list[bool] = []

    def interrupt(key: str) -> None:
        if key == entry_key(len(written) + 1):
            case.target.before_put = lambda _key: None
            written.append(second.look())

    for _ in range(3):
        case.target.before_put = interrupt
        assert not first.look(), "the other one was faster"
        case.check()
        case.job.train_and_save()
        assert first.look()
        written.append(True)
        case.check()
        case.job.train_and_save()
    numbers = sorted(key for key in case.target.objects if key.startswith("chain/0"))
    assert numbers == [entry_key(number) for number in range(1, 7)]


def test_publisher_reads_nothing_before_it_is_due(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.job.train_and_save()
    case.publish(PublishSpec("file:///models", 60.0, None))
    case.job.train_and_save()
    assert case.publisher is not None
    with monkeypatch.context() as patched:
        for store in (case.job.store, case.target):
            patched.setattr(store, "list", None)
        assert not case.publisher.look()
    assert case.publisher.look(final=True)
    case.check()


def test_pins_keep_what_the_next_delta_begins_with(case: Case) -> None:
    case.job.train_and_save()
    case.publish()
    pinned = case.job.anchors[-1]
    for _ in range(3):
        case.job.train_and_save(full=True)
    store = case.job.store
    sweep(store, case.job.anchors[-1:], 1000.0)
    assert needed_by(store, pinned.key)
    case.publish()
    case.check()
    sweep(store, case.job.anchors[-1:], 1000.0)
    assert pinned.key not in store.objects, "the pin has moved on"
    last = case.job.anchors[-1]
    case.job.train_and_save(full=True)
    sweep(store, case.job.anchors[-1:], 2000.0)
    assert last.key not in store.objects, "the pin has expired"


def sweep(store: MemoryStore, keep: list[AnchorRef], now_s: float) -> None:
    """Sweep as a leader does, at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "time", lambda: now_s)
        Pruner(store, "uid", grace_s=0.0).prune(tuple(keep))
