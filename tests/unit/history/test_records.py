"""Records of jobs in a store: the newest counts, events of earlier ones stay, and no sweep deletes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json, pack, to_json
from cpr_contract.history import MOST_OUTPUTS, OutputRequest, ProcessId, output_key, parse_output
from cpr_contract.records import MOST_EVENTS, JobRecord, RecordedEvent, record_key
from cpr_contract.reports import Deleted, ExitCode
from cpr_contract.spec import StoreSpec
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.errors import AmbiguousError
from cpr_trainer.history.outputs import old_outputs, only_job, read_outputs
from cpr_trainer.history.records import merged, newest_records, read_record, store_record
from cpr_trainer.process import main
from cpr_trainer.store import open_store
from support.job_saves import JobBench
from support.memory_store import MemoryStore

NOWHERE = StoreSpec("file:///nowhere", None, "", "")


def event(number: int, at_s: float) -> RecordedEvent:
    return RecordedEvent(at_s, "Normal", "Progress", f"step {number}", f"event-{number}")


def record(written_s: float, *events: RecordedEvent, uid: str = "uid") -> JobRecord:
    return JobRecord(uid, written_s, f'{{"at":{written_s}}}', events)


def stored(store: MemoryStore, uid: str | None = "uid") -> tuple[JobRecord, ...]:
    return tuple(newest_records(store, uid))


def test_later_record_replaces_an_earlier_one_with_its_events() -> None:
    store = MemoryStore()
    store_record(store, record(10.0, event(1, 5.0)))
    store_record(store, record(20.0, event(2, 15.0), event(1, 16.0)))
    (found,) = stored(store)
    assert (found.written_s, found.events) == (20.0, (event(1, 5.0), event(2, 15.0)))
    store_record(store, record(30.0))
    assert len(store.objects) == 2, "the last one stays until the next"


def test_earlier_record_of_another_operator_changes_no_object() -> None:
    store = MemoryStore()
    store_record(store, record(20.0, event(2, 15.0)))
    before = dict(store.objects)
    for earlier in (record(10.0, event(1, 5.0)), record(20.0, event(3, 5.0))):
        store_record(store, earlier)
        assert store.objects == before


def test_damaged_record_is_left_out_and_replaced() -> None:
    store = MemoryStore()
    store.put(record_key(record(10.0)), b"{")
    assert stored(store) == ()
    store_record(store, record(20.0, event(1, 5.0)))
    assert stored(store) == (record(20.0, event(1, 5.0)),)


def test_unfinished_record_is_none() -> None:
    store = MemoryStore()
    store_record(store, record(10.0, event(1, 5.0)))
    unfinished = f"{record_key(record(30.0))}.writing-0"
    store.put(unfinished, b"{")
    store_record(store, record(20.0))
    assert stored(store) == (record(20.0, event(1, 5.0)),)
    store_record(store, record(40.0))
    assert unfinished in store.objects, "its writer may live"


def test_records_of_all_jobs_are_found_by_uid() -> None:
    store = MemoryStore()
    for uid, at in (("b", 1.0), ("a", 2.0), ("a", 3.0)):
        store_record(store, record(at, uid=uid))
    store.put("c/gen-0001/dense/group-0001/step-000000010/manifest.json", b"{}")
    assert [(each.job_uid, each.written_s) for each in stored(store, None)] == [("a", 3.0), ("b", 1.0)]


def test_events_are_bounded_by_the_newest() -> None:
    every = tuple(event(number, float(number)) for number in range(MOST_EVENTS + 5))
    assert merged(every[:5], every[5:]) == every[5:]


def test_record_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "record"
    assert (read_record(None), read_record(path)) == (None, None)
    text = pack(to_json(record(10.0)))
    for content in ("", text[: len(text) // 2], "{}"):
        path.write_text(content)
        assert read_record(path) is None
    path.write_text(text)
    assert read_record(path) == record(10.0)


def process(incarnation: int, number: int, uid: str = "uid") -> ProcessId:
    return ProcessId(uid, "shard", 3, incarnation, number)


def test_output_keys_name_their_process() -> None:
    assert output_key(process(5, 2)) == "uid/history/output/shard-0003/inc-0005/process-0002"
    assert parse_output(output_key(process(12345, 2))) == process(12345, 2)
    assert parse_output(record_key(record(1.0))) is None


def test_oldest_outputs_of_a_member_are_dropped() -> None:
    keys = [output_key(process(incarnation, number)) for incarnation in (10, 9, 8) for number in (2, 10, 1)]
    assert MOST_OUTPUTS == 8
    assert old_outputs(keys) == (process(8, 1),)


def test_outputs_are_those_of_an_incarnation_or_the_newest() -> None:
    store = MemoryStore()
    for each in (process(1, 1), process(2, 1), process(2, 2)):
        store.put(output_key(each), f"{each.incarnation}-{each.process} \xff\n".encode("latin-1"))
    store.put(output_key(replace(process(1, 1), index=30)), b"of another member")

    def texts(incarnation: int | None, uid: str | None = "uid") -> list[str]:
        found = read_outputs(OutputRequest(NOWHERE, uid, "shard", 3, incarnation), store)
        assert found.stored == (process(1, 1), process(2, 1), process(2, 2))
        return [each.text for each in found.outputs]

    assert texts(None) == texts(None, uid=None) == ["2-2 \ufffd\n"]
    assert texts(2) == ["2-1 \ufffd\n", "2-2 \ufffd\n"]
    assert texts(3) == []


def test_job_must_be_named_if_a_store_has_several() -> None:
    keys = [output_key(process(1, 1, uid)) for uid in ("a", "b")]
    assert (only_job(keys[:1]), only_job(["c/data.json"])) == ("a", "")
    with pytest.raises(AmbiguousError, match="a, b"):
        only_job(keys)


def with_history(store: MemoryStore, bench: JobBench) -> set[str]:
    """Add a record and an output, and return their keys."""
    store_record(store, record(10.0))
    store.put(output_key(process(1, 1)), b"text")
    bench.serve()
    for step in (10, 20, 30, 40):
        bench.anchor(step)
    return {record_key(record(10.0)), output_key(process(1, 1))}


def test_sweep_leaves_the_history() -> None:
    store = MemoryStore()
    history = with_history(store, JobBench(store))
    found = Pruner(store, "uid", grace_s=0.0).superfluous(30, now_s=1e12)
    assert found
    assert not history & {entry.key for entry in found}


@pytest.mark.parametrize("keeps", [False, True])
def test_cleanup_deletes_the_history_unless_it_is_kept(keeps: bool, tmp_path: Path) -> None:  # noqa: FBT001
    spec = StoreSpec((tmp_path / "store").as_uri(), None, "bucket", "team")
    store = open_store(spec, None, None)
    bench = JobBench(store)
    history = with_history(store, bench)  # type: ignore[arg-type]
    last = record(50.0)
    (tmp_path / "record").write_text(pack(to_json(last)))
    job = replace(bench.job, snapshots=replace(bench.job.snapshots, store=spec))
    variables = {env.SPEC: to_json(job), env.TERMINATION_FILE: str(tmp_path / "end")}
    if keeps:
        variables[env.HISTORY_FILE] = str(tmp_path / "record")
    assert main(["cleanup", *(["--keep-history"] if keeps else [])], variables) == ExitCode.OK
    assert from_json(Deleted, (tmp_path / "end").read_text("utf-8")).objects > 0
    left = {entry.key for entry in store.list("uid/")}
    assert left == (history | {record_key(last)} if keeps else set())
