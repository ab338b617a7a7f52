"""The saver against a store in memory: an anchor needs every shard's manifest of the same step."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import MANIFEST, DenseManifest, incarnation_prefix, step_folder
from cpr_contract.pinned_data import DataManifest, data_key
from cpr_trainer.checkpoint.anchor import committer
from cpr_trainer.checkpoint.anchor.committer import AnchorCommitter, DenseCopy, Saves
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.records import find_anchor, read_anchor, read_frozen, read_vocabularies
from cpr_trainer.data.open import manifest_of_indices
from cpr_trainer.exchange import SaveState
from cpr_trainer.store import BucketMissingError, StoreFullError, StoreUnreachableError
from cprjob_serving.vocabulary import Vocabulary
from support.memory_store import MemoryStore
from support.saves import draft, full_save

VALUES = Vocabulary.of(b"u1\nu2\n")


class _FlakyStore(MemoryStore):
    """Unreachable while `down`, refuses writes while `full`, without the objects in `dense` while `missing`."""

    def __init__(self) -> None:
        super().__init__(self._check_space)
        self.down = False
        self.full = False
        self.missing = False
        self.refused = 0

    def get(self, key: str) -> bytes:
        self._check(key)
        return super().get(key)

    def _check_space(self, key: str) -> None:
        self._check(key)
        if self.full:
            raise StoreFullError("No space.", "Make space.")

    def _check(self, key: str) -> None:
        if self.down:
            self.refused += 1
            raise StoreUnreachableError("The store does not answer.", "Wait.")
        if self.missing and "/dense/" in key:
            raise BucketMissingError("There is no bucket.", "Create it.")


class _CommitterHarness:
    """A store, two shards, and a saver with their acknowledgements."""

    def __init__(self) -> None:
        self.store = _FlakyStore()
        self.incarnations = [1, 1]
        self.saved = [SaveState(), SaveState()]
        self.committed = 0
        self.saver = AnchorCommitter(
            self.store,
            lambda: tuple(self.saved),
            lambda: tuple(self.incarnations),
            2,
            pruner=Pruner(self.store, "job", grace_s=0.0),
            recorded=lambda: _newest(self.saver),
            anchors=(),
            rng=random.Random(1),
            committed=self._count,
        )
        self.saver.start()

    def _count(self) -> None:
        self.committed += 1

    def commit_shard(self, index: int, step: int, incarnation: int = 1, *, report: bool = True) -> None:
        manifest = draft(step, job_uid="job", index=index, incarnation=incarnation, lost=((0, index),))
        full_save(self.store, manifest, np.zeros((3, 2), np.float32), np.zeros((3, 0), np.float32))
        if report:
            self.saved[index] = SaveState(step, 10 * step)

    def wait_for(self, condition: Callable[[Saves], object]) -> None:
        _until(lambda: condition(self.saver.state))


@pytest.fixture
def harness() -> Iterator[_CommitterHarness]:
    harness = _CommitterHarness()
    yield harness
    harness.saver.close()


def _newest(saver: AnchorCommitter) -> str:
    return saver.state.anchors[-1].key if saver.state.anchors else ""


def _dense(step: int) -> DenseCopy:
    meta = DenseManifest(CONTRACT_VERSION, "job", 1, 1, step, 10 * step, 1000, "layout", ())
    return DenseCopy(meta, {"network": torch.full((1, 4), float(step))})


def test_an_anchor_is_committed_when_the_last_shard_has_saved(harness: _CommitterHarness) -> None:
    harness.saver.offer_cut(_dense(5))
    harness.commit_shard(0, 5)
    harness.saver.offer_dense(_dense(4))
    harness.wait_for(lambda saves: saves.dense_save and saves.dense_save.step == 4)
    assert harness.saver.state.anchors == ()
    assert harness.saver.busy
    assert harness.committed == 0
    harness.commit_shard(1, 5)
    harness.wait_for(lambda saves: saves.anchors)

    anchor = harness.saver.anchor_of(5)
    assert anchor is not None
    _until(lambda: harness.committed == 1)
    manifest = read_anchor(harness.store, anchor)
    assert manifest.lost == (((0, 0),), ((0, 1),))
    assert [ref.key for ref in manifest.shards] == [
        f"{incarnation_prefix('job', 1, index, 1)}/{step_folder(5)}/{MANIFEST}" for index in range(2)
    ]
    harness.wait_for(lambda _: not harness.saver.busy)


def test_a_shard_replaced_before_it_committed_voids_the_cut(harness: _CommitterHarness) -> None:
    harness.saver.offer_cut(_dense(5))
    harness.commit_shard(0, 5)
    harness.wait_for(lambda saves: saves.dense_save and saves.dense_save.step == 5)
    harness.incarnations[1] = 2
    harness.wait_for(lambda saves: saves.void == 5)

    assert not harness.saver.busy
    assert find_anchor(harness.store, "job", 1, 5) is None


def test_a_shard_replaced_after_it_committed_does_not(harness: _CommitterHarness) -> None:
    harness.saver.offer_cut(_dense(5))
    harness.commit_shard(1, 5, report=False)
    harness.incarnations[1] = 2
    harness.commit_shard(0, 5)

    harness.wait_for(lambda saves: saves.anchors)


def test_cut_abandoned_by_a_shard_is_void_and_the_next_waits_for_its_time(harness: _CommitterHarness) -> None:
    harness.saver.offer_cut(_dense(5))
    harness.commit_shard(0, 5)
    harness.saved[1] = SaveState(2, 20, given_up_step=5)
    harness.wait_for(lambda _: not harness.saver.busy)

    assert harness.saver.state.void == 0
    assert find_anchor(harness.store, "job", 1, 5) is None
    harness.saver.offer_cut(_dense(10))
    for index in range(2):
        harness.commit_shard(index, 10)
    harness.wait_for(lambda saves: saves.anchors)


def test_problem_is_reported_until_the_store_has_answered(
    harness: _CommitterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_POLL_STORE_S", 0.05)
    harness.saver.offer_cut(_dense(5))
    harness.wait_for(lambda saves: saves.dense_save)
    harness.store.down = True
    harness.saver.offer_dense(_dense(6))
    harness.wait_for(lambda saves: saves.problem)
    reported, refused_before = set(), harness.store.refused

    def look(saves: Saves) -> bool:
        reported.add(saves.problem and saves.problem.reason)
        return harness.store.refused >= refused_before + 2

    harness.wait_for(look)
    assert reported == {"StoreUnreachable"}, "between two questions to the store as well"
    harness.store.down = False
    harness.wait_for(lambda saves: saves.problem is None and saves.dense_save and saves.dense_save.step == 6)


def test_a_cut_whose_bucket_vanishes_becomes_no_anchor(harness: _CommitterHarness) -> None:
    harness.store.missing = True
    harness.saver.offer_cut(_dense(5))
    harness.commit_shard(0, 5)
    harness.commit_shard(1, 5)
    harness.wait_for(lambda saves: saves.problem and saves.problem.reason == "BucketMissing")
    harness.store.missing = False
    harness.wait_for(lambda saves: not harness.saver.busy and saves.problem is None)
    assert find_anchor(harness.store, "job", 1, 5) is None


@pytest.mark.parametrize("of_a_shard", [False, True])
def test_full_store_is_swept_before_the_next_anchor(harness: _CommitterHarness, *, of_a_shard: bool) -> None:
    """The write of the leader fails, or that of a shard, by its report."""
    for step in (5, 10):
        for index in range(2):
            harness.commit_shard(index, step)
        harness.saver.offer_cut(_dense(step))
        harness.wait_for(lambda _, step=step: harness.saver.anchor_of(step) and not harness.saver.busy)
    left = "job/gen-0001/shard-0000/inc-0001/step-000000007/part-00000"
    garbage = left.replace("7/", "3/")
    for key in (left, garbage):
        harness.store.put(key, b"never committed")
    if of_a_shard:
        harness.saved[1] = SaveState(10, 100, store_full=True)
    else:
        harness.store.full = True
        harness.saver.offer_dense(_dense(15))
    _until(lambda: garbage not in harness.store.objects)
    assert left in harness.store.objects, "it is not older than the oldest anchor that stays"


def test_only_the_newest_anchors_stay(harness: _CommitterHarness) -> None:
    for step in (5, 10, 15):
        for index in range(2):
            harness.commit_shard(index, step)
        harness.saver.offer_cut(_dense(step))
        harness.wait_for(lambda _, step=step: harness.saver.anchor_of(step) and not harness.saver.busy)

    assert [anchor.step for anchor in harness.saver.state.anchors] == [10, 15]
    harness.saver.close()
    assert find_anchor(harness.store, "job", 1, 5) is None
    found = find_anchor(harness.store, "job", 1, 10)
    assert found is not None
    assert found == harness.saver.anchor_of(10)


class _Sweeper:
    """A pruner with scripted sweeps."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.sweeps = 0

    def note(self, *_: object) -> None:
        pass

    def prune(self, *_: object, **__: object) -> bool:
        self.sweeps += 1
        if self.error is not None:
            raise self.error
        return False


def _saver_with(pruner: _Sweeper, store: MemoryStore | None = None, **options: Any) -> AnchorCommitter:
    """A committer over one shard, with a saved cut at step 5."""
    store = store or MemoryStore()
    full_save(store, draft(5, job_uid="job", index=0), np.zeros((3, 2), np.float32), np.zeros((3, 0), np.float32))
    saver = AnchorCommitter(
        store,
        lambda: (SaveState(5, 50),),
        lambda: (1,),
        2,
        pruner=pruner,  # type: ignore[arg-type]
        recorded=lambda: _newest(saver),
        anchors=(),
        rng=random.Random(1),
        **options,
    )
    saver.start()
    saver.offer_cut(_dense(5))
    return saver


def _until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_failed_retention_is_reported_until_a_sweep_succeeds() -> None:
    pruner = _Sweeper(DamagedError("job/manifest.json", "cannot be read"))
    saver = _saver_with(pruner)
    _until(lambda: pruner.sweeps)
    _until(lambda: saver.state.problem)
    first, reported = pruner.sweeps, set()

    def look() -> bool:
        reported.add(saver.state.problem and saver.state.problem.reason)
        return pruner.sweeps > first

    _until(look)
    assert reported == {"DamagedSave"}, "at every look until the next sweep"
    assert saver.anchor_of(5)
    assert not saver.busy, "cuts continue"
    pruner.error = None
    _until(lambda: saver.state.problem is None)
    saver.check()
    saver.close()


def test_unexpected_error_reaches_the_training_thread() -> None:
    saver = _saver_with(_Sweeper(RuntimeError("can't start new thread")))

    def raises() -> bool:
        try:
            saver.check()
        except RuntimeError:
            return True
        return False

    _until(raises)
    saver.close()


def test_anchor_is_never_without_its_data_and_its_values() -> None:
    frozen = manifest_of_indices("job", "s3://b/day=*", [])
    scored = manifest_of_indices("job", "s3://b/test/", [], evaluates=True)
    store = MemoryStore()
    saver = _saver_with(_Sweeper(None), store, frozen=(None, frozen, scored), vocabularies={"user": VALUES})
    _until(lambda: saver.state.anchors)
    assert read_frozen(store, DataManifest, data_key("job")) == frozen
    assert read_frozen(store, DataManifest, data_key("job", evaluates=True)) == scored
    found = read_vocabularies(store, "job")
    assert found is not None
    assert found["user"].text == VALUES.text
    saver.close()


def test_a_dense_state_that_takes_long_to_save_waits_for_its_time(
    harness: _CommitterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0, 30)
    monkeypatch.setattr(committer, "monotonic", lambda: float(next(times)))  # each look at the clock is 30 s later
    harness.saver.offer_dense(_dense(1))
    harness.wait_for(lambda saves: saves.dense_save)
    harness.saver.offer_cut(_dense(5))
    for index in range(2):
        harness.commit_shard(index, 5)
    harness.wait_for(lambda saves: saves.anchors)
    assert not any("-dense" in key and "step-000000005" in key for key in harness.store.objects)
