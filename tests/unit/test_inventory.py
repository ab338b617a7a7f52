"""The answers of `python -m cpr_trainer inventory`: listing, verification and manual pruning."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.codec import from_json, to_json
from cpr_contract.requests import Action, Listing, Pruning, Request, Verification
from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import AmbiguousError
from cpr_trainer.inventory import answer, run
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import open_store
from support.job_saves import JobBench
from support.memory_store import MemoryStore

NOWHERE = StoreSpec("file:///nowhere", None, "b", "")


class _OldStore(MemoryStore):
    """A store with objects of time 0."""

    def put(self, key: str, data: Any, **options: Any) -> int:
        crc = super().put(key, data, **options)
        self.modified_s[key] = 0.0
        return crc


def prune(store: MemoryStore, now_s: float = 61.0, **fields: Any) -> Pruning:
    found = answer(Request("Prune", NOWHERE, **fields), store, now_s)
    assert isinstance(found, Pruning)
    return found


def steps(points: Any) -> list[int]:
    return [point.step for point in points]


@pytest.fixture
def store() -> _OldStore:
    store = _OldStore()
    bench = JobBench(store)
    bench.serve()
    for step in (10, 20, 30, 40):
        bench.anchor(step, full=True)
    return store


def test_process_lists_and_verifies_a_store(tmp_path: Path) -> None:
    spec = StoreSpec(tmp_path.as_uri(), None, "bucket", "a")
    bench = JobBench(open_store(spec, None, None))
    bench.anchor(10)
    kinds: dict[Action, type[Listing | Verification]] = {"List": Listing, "Verify": Verification}
    for action, kind in kinds.items():
        sink = io.StringIO()
        run({}, io.StringIO(to_json(Request(action, spec))), sink)
        found = from_json(kind, sink.getvalue())
        assert (steps(found.points), found.damaged) == ([10], ())


def test_malformed_request_is_refused() -> None:
    with pytest.raises(BadSpecError):
        run({}, io.StringIO("{}"), io.StringIO())


@pytest.mark.parametrize(
    ("now_s", "keep", "go"),
    [
        pytest.param(61.0, 2, [10, 20], id="all-but-two"),
        pytest.param(61.0, 9, [], id="fewer-than-are-kept"),
        pytest.param(59.0, 2, [], id="too-young"),
    ],
)
def test_pruning_can_list_without_deleting(store: _OldStore, now_s: float, keep: int, go: list[int]) -> None:
    before = dict(store.objects)
    found = prune(store, now_s, keep=keep)
    assert (steps(found.go), found.deleted, found.objects > 0) == (go, False, go != [])
    assert store.objects == before


@pytest.mark.parametrize("dense_step", [None, 5])
def test_pruning_needs_an_anchor(dense_step: int | None) -> None:
    store = _OldStore()
    if dense_step is not None:
        JobBench(store).dense(dense_step)
    assert prune(store, keep=1, delete=True).objects == 0


def test_pruning_deletes_the_listed_objects(store: _OldStore) -> None:
    before = dict(store.objects)
    found = prune(store, keep=2, delete=True)
    deleted = before.keys() - store.objects.keys()
    assert found.deleted
    assert (len(deleted), sum(len(before[key]) for key in deleted)) == (found.objects, found.size_bytes)
    assert steps(answer(Request("List", NOWHERE), store, 61.0).points) == [30, 40]  # type: ignore[union-attr]
    assert prune(store, keep=2, delete=True).objects == 0


def test_anchor_of_the_status_stays_with_all_after_it(store: _OldStore) -> None:
    assert steps(prune(store, keep=1, recorded=20, delete=True).go) == [10]
    assert steps(prune(store, keep=2, recorded=40, delete=True).stay) == [30, 40]


def test_save_without_an_anchor_stays_while_it_is_the_base_of_a_retained_one() -> None:
    store = _OldStore()
    bench = JobBench(store)
    bench.anchor(10)
    replaced, _ = bench.shards
    replaced.change(3)
    replaced.save(20)  # a replaced shard's, of a cut that no anchor was made of
    bench.anchor(30)
    found = prune(store, keep=1, delete=True)
    cut, anchor = found.stay
    assert (cut.step, cut.kind, cut.shards) == (20, "Cut", (0,))
    assert (anchor.step, anchor.kind, cut.step in anchor.bases) == (30, "Anchor", True)
    assert steps(found.go) == [10]


def test_pruning_to_zero_deletes_all_of_the_job_and_nothing_else(store: _OldStore) -> None:
    store.put("else/gen-0001/shard-0000/inc-0001/origin.json", b"{}")
    assert steps(prune(store, job_uid="uid", delete=True).go) == [10, 20, 30, 40]
    assert list(store.objects) == ["else/gen-0001/shard-0000/inc-0001/origin.json"]


@pytest.mark.parametrize("keep", [0, 2])
def test_request_names_one_of_several_jobs(store: _OldStore, keep: int) -> None:
    store.put("else/gen-0001/shard-0000/inc-0001/origin.json", b"{}")
    with pytest.raises(AmbiguousError, match="else, uid"):
        prune(store, keep=keep, delete=True)


class TestAfterARollback:
    """Generation 2 began at the anchor of step 20: those of steps 30 and 40 are in no lineage any more."""

    def test_restore_records_show_its_anchor(self, store: _OldStore) -> None:
        JobBench(store, generation=2).serve(step=20)
        assert steps(prune(store, keep=2, delete=True).stay) == [10, 20, 30, 40]
        assert steps(prune(store, keep=1, delete=True).stay) == [20, 30, 40]

    def test_status_shows_its_anchor_before_any_restore(self, store: _OldStore) -> None:
        assert steps(prune(store, keep=2, forks=((2, 20),)).stay) == [10, 20, 30, 40]
        assert steps(prune(store, keep=2).stay) == [30, 40]

    def test_no_object_is_pruned_without_a_known_anchor(self, store: _OldStore) -> None:
        JobBench(store, generation=2).anchor(25)
        with pytest.raises(AmbiguousError, match="generation 2"):
            prune(store, keep=1, delete=True)
