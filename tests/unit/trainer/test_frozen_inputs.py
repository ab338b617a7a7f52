"""Every trainer reads the inputs that the first leader froze, however the files change later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import WorkersManifest, workers_key
from cpr_contract.pinned_data import DataManifest, data_key
from cpr_contract.spec import DataSpec
from cpr_trainer.checkpoint.format.records import read_frozen, restore_frozen
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.files import Block, Index, SourceFile
from cpr_trainer.data.open import (
    Find,
    FindVocabularies,
    indices_of_manifest,
    list_files,
    manifest_of_indices,
    open_dataset,
)
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.vocabularies import Vocabularies
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris, Version
from cpr_trainer.trainer import frozen_inputs as module
from cpr_trainer.trainer.control import Terminated
from cpr_trainer.trainer.frozen_inputs import FrozenInputs
from cpr_trainer.trainer.worker_tuning import WorkerChoice
from support.fake_s3 import BUCKET, FakeS3
from support.memory_store import MemoryStore
from support.table_data import FORMATS, TABLES, as_text, assert_same, clicks, everything, model_of, read, spec, write

BUILT = (replace(TABLES[0], ids="Vocabulary", min_count=2, out_of_range="DefaultRow"), TABLES[1])
URI = f"s3://{BUCKET}/day=*"


class Bucket:
    """A job's store, the bucket with its data, and trainers that open it."""

    def __init__(self, objects: dict[str, bytes], patch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        self.s3 = FakeS3(objects)
        self.files: Uris = self.s3.uris(patch)

    def open(
        self,
        data: DataSpec,
        leads: Callable[[], bool] = lambda: True,
        poll_interrupts: Callable[[], None] = lambda: None,
        on_new_files: Callable[[int], None] = lambda _: None,
    ) -> tuple[Dataset, FrozenInputs]:
        """Do as a trainer does that starts."""
        inputs = FrozenInputs("uid", data.uri, leads, poll_interrupts, on_new_files)
        list_present = partial(list_files, data, self.files)
        return open_dataset(
            data, model_of(TABLES), self.files, lambda find: inputs.freeze_data(self.store, list_present, find)
        ), inputs


def day(number: int, rows: int = 200) -> bytes:
    return as_text(clicks(rows, seed=number), ",")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 2000)
    return Bucket({"day=1.csv": day(1), "day=2.csv": day(2)}, monkeypatch)


@pytest.mark.parametrize("length", [{"epochs": 1, "samples": None}, {"epochs": None, "samples": 400}])
def test_each_row_is_trained_once_though_files_come_while_trainers_are_replaced(
    bucket: Bucket, length: dict[str, Any]
) -> None:
    data = replace(spec("CSV", URI), batch_size=20, shuffle_rows=100, **length)
    old = BatchOrder.of(data, bucket.open(data)[0].layout)
    bucket.s3.objects["day=0.csv"] = day(3, 20)
    new = BatchOrder.of(data, bucket.open(data)[0].layout)
    seen: Counter[int] = Counter()
    for step in range(1, old.steps + 1):
        seen.update(old.indices_of(old.slice_of(step, 0, 2)).tolist())
        replaced = old if step <= old.steps // 4 else new
        seen.update(replaced.indices_of(replaced.slice_of(step, 1, 2)).tolist())
    assert seen == Counter(range(400))


def test_text_is_indexed_once_and_listed_by_leaders_only(bucket: Bucket) -> None:
    first, _ = bucket.open(spec("CSV", URI))
    # Files are indexed side by side, and then the first block of each is searched for ids that are written in two ways.
    assert Counter(bucket.s3.opened) == {"day=1.csv": 2, "day=2.csv": 2}
    bucket.s3.opened.clear()
    bucket.s3.listed = 0
    later, _ = bucket.open(spec("CSV", URI), leads=lambda: False)
    assert (bucket.s3.opened, bucket.s3.listed) == ([], 0)
    assert_same(everything(later), everything(first))


@pytest.mark.parametrize("ending", FORMATS)
def test_data_of_the_manifest_is_that_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 2000)
    data = write(clicks(300), tmp_path, ending, files=3)
    bucket = Bucket({}, monkeypatch)
    bucket.open(data)
    again, _ = bucket.open(data, leads=lambda: False)
    assert again.layout.blocks > 3
    assert_same(everything(again), everything(read(data)))


def test_data_of_the_evaluation_is_frozen_separately(bucket: Bucket) -> None:
    """Each to its own document: files that come later are in neither, and one that changed is refused by name."""
    trained, _ = bucket.open(spec("CSV", URI))
    bucket.s3.objects |= {"test/1.csv": day(7, 30), "test/2.csv": day(8, 40)}

    def scored() -> tuple[Dataset, FrozenInputs]:
        inputs = FrozenInputs("uid", f"s3://{BUCKET}/test/", lambda: True, lambda: None, evaluates=True)
        data = spec("CSV", f"s3://{BUCKET}/test/")
        found = open_dataset(
            data,
            model_of(TABLES),
            bucket.files,
            lambda find: inputs.freeze_data(bucket.store, partial(list_files, data, bucket.files), find),
        )
        return found, inputs

    assert scored()[0].layout.rows == 70
    bucket.s3.objects["test/3.csv"] = day(9, 50)
    dataset, inputs = scored()
    inputs.count_new_files()
    assert (dataset.layout.rows, inputs.new_files, trained.layout.rows) == (70, 0, 400)
    assert {data_key("uid"), data_key("uid", evaluates=True)} <= bucket.store.objects.keys()
    bucket.s3.objects["test/2.csv"] = day(10, 40)
    dataset, _ = scored()
    with pytest.raises(DataError, match=r"test/2.csv"):
        everything(dataset)


def test_leader_counts_new_files_seldom_and_bridges_a_failed_listing(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, counted = 1000.0, list[int]()
    monkeypatch.setattr(module, "monotonic", lambda: now)
    dataset, inputs = bucket.open(spec("CSV", URI), on_new_files=counted.append)
    assert inputs.new_files == 0
    bucket.s3.objects["day=3.csv"] = day(3)
    inputs.count_new_files()
    bucket.s3.objects["day=4.csv"] = day(4)
    bucket.s3.listed = 0
    inputs.count_new_files()
    assert (counted, bucket.s3.listed) == ([1], 0), "it has just listed them"
    now += 600.0
    objects = dict(bucket.s3.objects)
    bucket.s3.objects.clear()
    inputs.count_new_files()  # a pattern that names no file is an error
    bucket.s3.objects |= objects
    inputs.count_new_files()
    assert counted == [1]
    now += 600.0
    inputs.count_new_files()
    assert counted == [1, 2]
    dataset, successor = bucket.open(spec("CSV", URI))
    assert (successor.new_files, dataset.layout.rows) == (2, 400)


def test_leader_that_cannot_list_the_data_trains_the_frozen_files(bucket: Bucket) -> None:
    bucket.open(spec("CSV", URI))
    bucket.s3.objects["_delta_log/00000000000000000000.json"] = b"{}"  # the folder has become a table since
    dataset, inputs = bucket.open(spec("CSV", URI))
    assert (inputs.new_files, dataset.layout.rows) == (0, 400)


def test_data_without_files_has_no_new_ones() -> None:
    inputs = FrozenInputs("uid", None, lambda: True, lambda: None)
    inputs.count_new_files()
    assert inputs.new_files == 0


def test_changed_local_file_is_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    data = write(clicks(50), tmp_path / "a", "csv")
    file = tmp_path / "a" / "part-000.csv"
    before = read(data)
    copy = file.read_bytes()
    file.unlink()
    file.write_bytes(copy)  # as on another node: the same bytes, at another time
    assert len(everything(before)) == 50
    before = read(data)
    file.write_bytes(copy.replace(b"u1", b"u2"))
    with pytest.raises(DataError, match=r"part-000\.csv has changed"):
        everything(before)


def test_follower_waits_for_the_leader_and_replaces_a_dead_one(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_POLLS", 2)
    leads = False
    polls = 0

    def poll_interrupts() -> None:
        nonlocal leads, polls
        assert read_frozen(bucket.store, DataManifest, data_key("uid")) is None
        polls += 1
        leads = polls > 3  # by a newer roster

    dataset, _ = bucket.open(spec("CSV", URI), lambda: leads, poll_interrupts)
    assert (polls > 3, dataset.layout.rows) == (True, 400)
    assert read_frozen(bucket.store, DataManifest, data_key("uid")) is not None


def test_vocabulary_is_built_once_and_read_by_later_processes(bucket: Bucket) -> None:
    data, leads, searches = spec("CSV", URI), True, 0

    def start() -> tuple[Dataset, FrozenInputs]:
        inputs = FrozenInputs("uid", URI, lambda: leads, lambda: None)

        def keep(find: FindVocabularies) -> Vocabularies:
            def count(poll_interrupts: Callable[[], None]) -> Vocabularies:
                nonlocal searches
                searches += 1
                return find(poll_interrupts)

            return inputs.freeze_vocabularies(bucket.store, count)

        def indices(find: Find) -> Sequence[Index]:
            return inputs.freeze_data(bucket.store, partial(list_files, data, bucket.files), find)

        return open_dataset(data, model_of(BUILT), bucket.files, indices, vocabularies=keep), inputs

    first, leader = start()
    bucket.s3.objects["day=0.csv"] = day(9, 500)  # it would change what is frequent
    again, successor = start()
    leads = False
    later, follower = start()
    assert searches == 1
    assert len(leader.vocabularies["user"]) > 10
    assert {leader.vocabularies["user"].text} == {each.vocabularies["user"].text for each in (successor, follower)}
    for each in (again, later):
        assert_same(everything(each), everything(first))


def _die() -> None:
    raise Terminated


def test_manifest_deleted_with_its_bucket_is_written_again(bucket: Bucket) -> None:
    _, inputs = bucket.open(spec("CSV", URI))
    before = bucket.store.get(data_key("uid"))
    bucket.store.delete([data_key("uid")])
    for _ in range(2):
        restore_frozen(bucket.store, inputs.data)
    assert bucket.store.get(data_key("uid")) == before


def test_leader_that_dies_during_a_measurement_leaves_nothing() -> None:
    store = MemoryStore()

    def measure(poll_interrupts: Callable[[], None]) -> WorkerChoice:
        poll_interrupts()
        return WorkerChoice(2, "faster")

    with pytest.raises(Terminated):
        FrozenInputs("uid", None, lambda: True, _die).freeze_workers(store, measure)
    assert read_frozen(store, WorkersManifest, workers_key("uid")) is None


def test_faster_one_of_two_leaders_decides() -> None:
    store = MemoryStore()

    def slow(_: object) -> WorkerChoice:
        FrozenInputs("uid", None, lambda: True, lambda: None).freeze_workers(
            store, lambda _: WorkerChoice(4, "faster", 8)
        )
        return WorkerChoice(2, "slower")

    inputs = FrozenInputs("uid", None, lambda: True, lambda: None)
    assert inputs.freeze_workers(store, slow) == WorkerChoice(4, "faster", 8)
    store.delete([workers_key("uid")])
    for _ in range(2):
        restore_frozen(store, inputs.workers)
    found = read_frozen(store, WorkersManifest, workers_key("uid"))
    assert found is not None
    assert (found.workers, found.threads) == (4, 8), "what was lost with its bucket comes again"


def test_manifest_of_many_files_stays_small() -> None:
    names = ("click", "price", "user")
    indices = []
    for number in range(200):
        file = SourceFile(
            f"s3://clicks/day=2026-01-01/part-{number:05d}.csv.gz", Version(10**8, f"{number:032x}"), names
        )
        indices.append(
            Index(file, tuple(Block(file, 35000 * n, 35000, n << 23, 1 << 23) for n in range(5)), sequential=True)
        )
    text = to_json(manifest_of_indices("uid", URI, indices))
    assert len(text) < 200 * (130 + 5 * 27)
    assert indices_of_manifest(from_json(DataManifest, text)) == indices
