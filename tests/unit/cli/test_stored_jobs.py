"""`cprjob report`, `ui` and `logs` of a store: jobs and processes that no cluster has any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cpr_contract.history import ProcessId, output_key
from cpr_contract.records import JobRecord, RecordedEvent
from cpr_contract.spec import StoreSpec
from cpr_operator.cli.app import app
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.ui import StoredJobs, choose_jobs, listing
from cpr_trainer.history.records import store_record
from cpr_trainer.store import Store, open_store

runner = CliRunner()
HERE = ClusterOptions()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(StoreSpec(tmp_path.as_uri(), None, "saves", "team"), None, None)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "saves" / "team").as_uri()


def put(store: Store, uid: str, name: str) -> None:
    metadata = {"name": name, "namespace": "research", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": "Failed", "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T01:00:00Z"}
    job = {"apiVersion": "cprjob.io/v1alpha1", "kind": "CPRJob", "metadata": metadata, "spec": {}, "status": status}
    event = RecordedEvent(1767225600.0, "Warning", "Failed", f"{name} has no data", "failed")
    store_record(store, JobRecord(uid, 1767229200.0, json.dumps(job), (event,)))


def run(*arguments: str) -> Result:
    return runner.invoke(app, [*arguments])


def test_report_of_a_store_shows_its_only_job(store: Store, uri: str) -> None:
    put(store, "uid-a", "criteo")
    result = run("report", uri)
    assert result.exit_code == 0, result.output
    assert "criteo: Failed" in result.output
    assert "the state of 2026-01-01 01:00:00 UTC" in result.output


def test_report_of_a_store_with_several_jobs_lists_them(store: Store, uri: str) -> None:
    put(store, "uid-a", "criteo")
    put(store, "uid-b", "avazu")
    result = run("report", uri)
    assert result.exit_code == 2
    assert "name one with --job: uid-a (criteo), uid-b (avazu)" in " ".join(result.output.split())
    chosen = run("report", uri, "--job", "uid-b", "--json")
    assert json.loads(chosen.stdout)["job"] == "avazu"


def test_page_of_a_deleted_job_has_its_events(store: Store, uri: str, tmp_path: Path) -> None:
    put(store, "uid-a", "criteo")
    page = tmp_path / "job.html"
    assert run("report", uri, "--html", str(page)).exit_code == 0
    assert "criteo has no data" in page.read_text("utf-8")


def test_ui_lists_all_jobs_of_a_store(store: Store, uri: str) -> None:
    put(store, "uid-a", "criteo")
    put(store, "uid-b", "avazu")
    jobs = choose_jobs(uri, None, None, HERE, all_namespaces=False)
    assert isinstance(jobs, StoredJobs)
    assert sorted(jobs.list()) == [("uid-a", "criteo"), ("uid-b", "avazu")]
    assert "avazu" in listing(jobs)["list"]
    assert jobs.report("uid-a", "criteo").events[0].message == "criteo has no data"


@pytest.mark.parametrize(
    "choose",
    [
        lambda uri: choose_jobs(uri, Path("folder"), None, HERE, all_namespaces=False),
        lambda uri: choose_jobs(uri, None, None, HERE, all_namespaces=True),
        lambda _uri: choose_jobs(None, None, "http://host", HERE, all_namespaces=False),
    ],
)
def test_ui_takes_one_source(choose: Callable[[str], object]) -> None:
    with pytest.raises(OptionError):
        choose("file:///folder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "cpr/job", "--job", "uid"), "--endpoint and --job are for a store"),
        (("logs", "job", "--previous", "--follow"), "one of --follow, --previous and --incarnation"),
        (("logs", "file:///folder"), "add --previous or --incarnation N"),
        (("logs",), "name a job on the cluster"),
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_logs_of_a_store_print_an_incarnation_with_headings(store: Store, uri: str) -> None:
    for incarnation, number in ((1, 1), (2, 1), (2, 2)):
        process = ProcessId("uid-a", "shard", 1, incarnation, number)
        store.put(output_key(process), f"line of {incarnation}-{number}\n".encode())
    found = run("logs", uri, "--role", "shard", "--index", "1", "--incarnation", "2")
    assert found.stdout == "line of 2-1\nline of 2-2\n"
    assert "==> shard/1 incarnation 2 process 2, ended" in found.stderr
    assert run("logs", uri, "--role", "shard", "--index", "1", "-p").stdout == "line of 2-2\n"
    missing = run("logs", uri, "--role", "shard", "--index", "1", "--incarnation", "7")
    assert missing.exit_code == 1
    assert "no output of incarnation 7 of shard/1; it has those of incarnation 1, 2." in " ".join(
        missing.output.split()
    )
