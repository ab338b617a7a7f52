"""The cleanup of a deleted job: its deletions, and the end of its process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json, to_json
from cpr_contract.reports import Deleted, ExitCode, Problem
from cpr_contract.spec import StoreSpec
from cpr_trainer.checkpoint.anchor.pruning import needed_by
from cpr_trainer.process import main
from cpr_trainer.store import Store, open_store
from support.job_saves import JobBench


@pytest.fixture
def spec(tmp_path: Path) -> StoreSpec:
    return StoreSpec((tmp_path / "store").as_uri(), None, "bucket", "team")


@pytest.fixture
def store(spec: StoreSpec) -> Store:
    return open_store(spec, None, None)


def clean_up(bench: JobBench, spec: StoreSpec, folder: Path, *spare: str) -> tuple[int, str]:
    """Run the code of the process; return its exit code and its termination message."""
    job = replace(bench.job, snapshots=replace(bench.job.snapshots, store=spec))
    termination_file = folder / "termination"
    arguments = ["cleanup", *(word for key in spare for word in ("--spare", key))]
    code = main(arguments, {env.SPEC: to_json(job), env.TERMINATION_FILE: str(termination_file)})
    return code, termination_file.read_text("utf-8")


def test_cleanup_deletes_all_of_the_job_and_no_save_of_another(store: Store, spec: StoreSpec, tmp_path: Path) -> None:
    bench = JobBench(store)
    bench.serve()
    bench.anchor(10)
    store.put("uid/gen-0001/shard-0000/inc-0001/step-000000020/part-00000", b"never committed")
    store.put("uid2/gen-0001/dense/group-0001/step-000000010/manifest.json", b"another job's")
    before = store.list("uid/")
    code, word = clean_up(bench, spec, tmp_path)
    assert code == ExitCode.OK
    assert from_json(Deleted, word) == Deleted(len(before), sum(entry.size_bytes for entry in before))
    assert [entry.key for entry in store.list("")] == ["uid2/gen-0001/dense/group-0001/step-000000010/manifest.json"]
    code, word = clean_up(bench, spec, tmp_path)
    assert (code, json.loads(word)["objects"]) == (ExitCode.OK, 0), "again without complaint"


def test_cleanup_keeps_the_anchor_that_another_job_restores_from(store: Store, spec: StoreSpec, tmp_path: Path) -> None:
    bench = JobBench(store)
    first, second = bench.anchor(10), bench.anchor(20)
    code, _ = clean_up(bench, spec, tmp_path, first.key, "uid/never/there")
    assert code == ExitCode.OK
    assert {entry.key for entry in store.list("uid/")} == set(needed_by(store, first.key))
    assert second.key not in {entry.key for entry in store.list("uid/")}


@pytest.mark.parametrize("key", ["uid/gen-0001/shard-0000/inc-0001/origin.json", "uid/../x", "uid/gen-0001"])
def test_named_object_that_is_no_anchor_keeps_no_save(store: Store, spec: StoreSpec, tmp_path: Path, key: str) -> None:
    bench = JobBench(store)
    bench.serve()
    bench.anchor(10)
    store.put("uid/gen-0001/shard-0000/inc-0001/origin.json", b"{}", if_absent=False)
    code, word = clean_up(bench, spec, tmp_path, key)
    assert code == ExitCode.OK
    assert set(from_json(Deleted, word).unreadable) <= {key}
    assert store.list("uid/") == ()


def test_failing_store_is_named_and_cleanup_may_be_repeated(store: Store, spec: StoreSpec, tmp_path: Path) -> None:
    bench = JobBench(store)
    (tmp_path / "store").write_bytes(b"no folder")
    code, word = clean_up(bench, spec, tmp_path)
    assert code == ExitCode.STORE_UNREACHABLE
    assert from_json(Problem, word).reason == "StoreUnreachable"
