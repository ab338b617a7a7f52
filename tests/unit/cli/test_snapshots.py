"""`cprjob snapshots`: over saves of a real writer, read by the trainer image's own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cpr_contract.spec import StoreSpec
from cpr_operator.cli.app import app
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.snapshots import check_phase
from cpr_operator.cli.store_source import JobStore, find_source

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
UID = "0d9f64a2-6b6c-4a54-9a3b-0f1d2c3b4a5e"
runner = CliRunner()
HERE = ClusterOptions()


def document(folder: Path, *, uid: str | None = UID, phase: str | None = None) -> Path:
    """A CPRJob as kubectl get -o yaml writes it."""
    job = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    job["spec"]["snapshots"] = {"keep": 3, "store": {"endpoint": f"file://{folder}", "bucket": "saves", "prefix": "a"}}
    if uid is not None:
        job["metadata"]["uid"] = uid
    if phase is not None:
        anchor = {"key": "k", "digest": "d", "generation": 1, "step": 20, "samples": 200}
        forks = [{"generation": 1}, {"generation": 2, "anchor": anchor}, {"generation": 3}]
        full = {"type": "SnapshotsDegraded", "status": "True", "reason": "StoreFull", "message": ""}
        job["status"] = {
            "phase": phase,
            "startTime": "2026-01-01T00:00:00Z",
            "forks": forks,
            "anchors": [anchor | {"step": 10}, anchor],
            "conditions": [full | {"lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), "utf-8")
    return path


class TestFindSource:
    def test_find_source_of_a_file_has_store_uid_model_and_status(self, tmp_path: Path) -> None:
        found = find_source(str(document(tmp_path, phase="Succeeded")), None, None, None, HERE)
        assert found.store == StoreSpec(f"file://{tmp_path}", None, "saves", "a")
        assert (found.job_uid, found.keep, found.phase) == (UID, 3, "Succeeded")
        assert found.forks == ((2, 20), (3, 0))
        assert (found.recorded, found.degraded) == (20, "StoreFull")
        assert found.model is not None

    def test_find_source_of_a_new_manifest_has_no_uid(self, tmp_path: Path) -> None:
        found = find_source(str(document(tmp_path, uid=None)), None, None, None, HERE)
        assert (found.job_uid, found.phase, found.forks) == (None, None, ())
        assert find_source(str(document(tmp_path)), None, None, "another", HERE).job_uid == "another"

    def test_find_source_of_a_local_run(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs" / "default" / "job.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(yaml.safe_load(document(tmp_path, phase="Running").read_text("utf-8"))), "utf-8")
        assert find_source(None, tmp_path, None, None, HERE).phase == "Running"

    @pytest.mark.parametrize(
        ("uri", "endpoint", "store"),
        [
            ("file:///some/folder", None, StoreSpec("file:///some/folder", None, "", "")),
            ("s3://bucket", "https://host", StoreSpec("https://host", None, "bucket", "")),
            ("s3://bucket/a/b/", "http://host:9000", StoreSpec("http://host:9000", None, "bucket", "a/b")),
        ],
    )
    def test_find_source_of_a_uri_has_no_job(self, uri: str, endpoint: str | None, store: StoreSpec) -> None:
        assert find_source(uri, None, endpoint, None, HERE) == JobStore(store, None)


@pytest.mark.parametrize(
    ("phase", "degraded", "everything", "allowed"),
    [
        (None, "", True, True),
        ("Succeeded", "", True, True),
        ("Failed", "", False, True),
        ("Suspended", "", False, True),
        ("Suspended", "", True, False),
        ("Running", "", False, False),
        ("Running", "StoreFull", False, True),
        ("Running", "StoreFull", True, False),
        ("Finishing", "StoreFull", False, True),
        ("Recovering", "", True, False),
        ("Suspending", "", False, False),
    ],
)
def test_check_phase_permits_pruning_of_active_jobs_only_with_degraded_saves(
    phase: Any, degraded: str, *, everything: bool, allowed: bool
) -> None:
    source = JobStore(StoreSpec("file:///nowhere", None, "", ""), None, phase=phase, degraded=degraded)
    if allowed:
        check_phase(source, everything=everything)
    else:
        with pytest.raises(OptionError, match=phase):
            check_phase(source, everything=everything)


class TestSavedJob:
    """A store with one anchor of the trainer image, and an uncommitted part of another job."""

    @pytest.fixture
    def uri(self, tmp_path: Path) -> str:
        from cpr_trainer.store import open_store  # noqa: PLC0415 -- torch, which other tests here do without
        from support.job_saves import JobBench  # noqa: PLC0415

        bench = JobBench(open_store(StoreSpec(tmp_path.as_uri(), None, "", ""), None, None))
        bench.anchor(10)
        return tmp_path.as_uri()

    def run(self, *arguments: str) -> Result:
        return runner.invoke(app, ["snapshots", *arguments], catch_exceptions=False)

    def test_ls_prints_points(self, uri: str) -> None:
        result = self.run("ls", uri)
        assert result.exit_code == 0
        for words in ("job uid", "Anchor", "640", "based on"):
            assert words in result.output
        (point,) = json.loads(self.run("ls", uri, "--json").output)["points"]
        assert (point["step"], point["kind"], point["shards"], point["bases"]) == (10, "Anchor", [0, 1], [])

    def test_verify_reports_a_damaged_part_by_text_and_exit_code(self, uri: str) -> None:
        assert self.run("verify", uri).exit_code == 0
        part = next(Path(uri.removeprefix("file://")).rglob("shard-0001/*/*/part-00000"))
        part.write_bytes(part.read_bytes()[:-1])
        result = self.run("verify", uri)
        assert result.exit_code == 1
        for words in (str(part).partition("uid/")[2], "expected: ", "found: ", "bytes", "damaged"):
            assert words in result.output
        found = json.loads(self.run("verify", uri, "--json").output)
        assert [damage["key"] for damage in found["damaged"]] == ["uid/" + str(part).partition("uid/")[2]]
        assert found["unusable"] == [found["points"][0]["key"]]

    def test_prune_deletes_only_with_delete(self, uri: str) -> None:
        folder = Path(uri.removeprefix("file://"))
        before = sorted(folder.rglob("*"))
        result = self.run("prune", uri, "--all")
        assert result.exit_code == 0
        assert "would be deleted" in result.output
        assert sorted(folder.rglob("*")) == before
        assert " delete\n" in result.output
        assert self.run("prune", uri, "--all", "--delete").exit_code == 0
        assert [path for path in folder.rglob("*") if path.is_file()] == []
        assert "no saves found" in self.run("ls", uri).output

    def test_failing_store_is_reported_with_a_remedy(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        result = self.run("ls", f"{(tmp_path / 'file').as_uri()}/below")
        assert result.exit_code == 1
        assert "Check the volume" in result.output
