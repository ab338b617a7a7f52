from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_operator.api.validate import InvalidSpecError
from cpr_operator.cli.command_errors import DocumentError
from cpr_operator.cli.document import changed_spec, parse_change, read_documents, read_job, set_value

EXAMPLES = Path(__file__).parents[3] / "examples"
QUICKSTART = EXAMPLES / "quickstart.yaml"


def write(path: Path, edit: dict[str, Any]) -> Path:
    document = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    document["spec"] |= edit
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path


def store(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["snapshots"]["store"]
    return found


def test_read_job_replaces_a_remote_store_by_a_folder_unless_changed(tmp_path: Path) -> None:
    job = read_job(QUICKSTART, (), tmp_path)
    assert store(job) == {"endpoint": f"file://{tmp_path}", "bucket": "saves"}
    assert job["metadata"]["namespace"] == "default"
    mine = {"endpoint": "file:///mine", "bucket": "b"}
    path = write(tmp_path / "job.yaml", {"snapshots": {"store": mine}})
    assert store(read_job(path, (), tmp_path)) == mine, "a folder in the file is kept"
    named = store(read_job(QUICKSTART, ("snapshots.store.endpoint=https://s3.example",), tmp_path))
    assert (named["endpoint"], named["bucket"]) == ("https://s3.example", "cprjob")


@pytest.mark.parametrize(
    ("change", "keys", "value"),
    [
        ("data.samples=20000", ("data", "samples"), 20000),
        ("spec.data.samples=20000", ("data", "samples"), 20000),
        ("image=a=b", ("image",), "a=b"),
        ("suspend=true", ("suspend",), True),
        ("model.topMlp=[8, 1]", ("model", "topMlp"), [8, 1]),
        ("data.uri=", ("data", "uri"), None),
    ],
)
def test_parse_change_splits_path_and_yaml_value(change: str, keys: tuple[str, ...], value: object) -> None:
    assert parse_change(change) == (keys, value)


@pytest.mark.parametrize(
    "change",
    ["=1", "data..samples=1", "data.samples=[1", "tables.2.rows=1", "tables.x=1", "name.first=1", "tables.0.rows.x=1"],
)
def test_invalid_changes_raise_document_error(change: str) -> None:
    with pytest.raises(DocumentError, match="--set"):
        set_value({"spec": {"tables": [{"rows": 1}, {"rows": 2}], "name": "plain"}}, *parse_change(change))


def test_set_value_reaches_into_lists_and_creates_parents() -> None:
    document: dict[str, Any] = {"spec": {"tables": [{"rows": 1}, {"rows": 2}], "widths": [1, 2]}}
    set_value(document, ("tables", "1", "rows"), 9)
    set_value(document, ("widths", "0"), 8)
    set_value(document, ("snapshots", "interval", "mode"), "Auto")
    assert document["spec"]["tables"] == [{"rows": 1}, {"rows": 9}]
    assert document["spec"]["widths"] == [8, 2]
    assert document["spec"]["snapshots"] == {"interval": {"mode": "Auto"}}


def test_read_job_reports_a_missing_store(tmp_path: Path) -> None:
    path = write(tmp_path / "job.yaml", {"snapshots": {}})
    with pytest.raises(InvalidSpecError) as caught:
        read_job(path, (), tmp_path)
    assert [each.field for each in caught.value.invalid] == ["spec.snapshots.store"]


@pytest.mark.parametrize("text", ["a: [", "a: 1\n---\nb: 2\n", ""])
def test_files_without_a_single_job_raise_document_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(DocumentError):
        read_job(path, (), tmp_path)
    with pytest.raises(DocumentError, match="cannot read"):
        read_documents(tmp_path / "nothing.yaml")


def test_changed_spec_permits_changes_of_a_suspended_job() -> None:
    spec = yaml.safe_load(QUICKSTART.read_text("utf-8"))["spec"] | {"suspend": True}
    suspended = {"startTime": "2026-01-01T00:00:00Z", "phase": "Suspended"}
    changed = changed_spec(spec, suspended, ("shards.replicas=3", "accuracyBudget.portionOfLostSamples=0.2"))
    assert (changed["shards"]["replicas"], changed["accuracyBudget"]["portionOfLostSamples"]) == (3, 0.2)
    assert changed["model"] == spec["model"]
    assert spec["shards"]["replicas"] == 2


@pytest.mark.parametrize(
    ("phase", "change", "says"),
    [
        ("Suspended", "data.batchSize=1", "spec.data: cannot be changed once the job has started"),
        ("Suspended", "shards.replicas=0", "spec.shards.replicas"),
        ("Running", "shards.replicas=3", "spec.shards.replicas: can only be changed while the job is suspended"),
    ],
)
def test_changed_spec_reports_forbidden_changes(phase: str, change: str, says: str) -> None:
    spec = yaml.safe_load(QUICKSTART.read_text("utf-8"))["spec"] | {"suspend": True}
    with pytest.raises(InvalidSpecError) as error:
        changed_spec(spec, {"startTime": "2026-01-01T00:00:00Z", "phase": phase}, (change,))
    assert says in str(error.value.invalid[0])


def test_read_job_refuses_other_jobs_as_restore_source(tmp_path: Path) -> None:
    for source, field in (("{job: yesterday}", "job"), ("{latestOf: {matchLabels: {series: clicks}}}", "latestOf")):
        with pytest.raises(InvalidSpecError) as caught:
            read_job(QUICKSTART, (f"restoreFrom={source}",), tmp_path)
        (only,) = caught.value.invalid
        assert only.field == f"spec.restoreFrom.{field}"
        assert "spec.restoreFrom.anchor" in only.remedy
    assert read_job(QUICKSTART, ("restoreFrom={anchor: key}",), tmp_path)["spec"]["restoreFrom"] == {"anchor": "key"}


def test_read_job_refuses_an_issuer(tmp_path: Path) -> None:
    issued = ("security={encryption: TLS, certificates: {issuerRef: {name: organisation}}}",)
    with pytest.raises(InvalidSpecError) as caught:
        read_job(QUICKSTART, issued, tmp_path)
    (only,) = caught.value.invalid
    assert only.field == "spec.security.certificates"
    assert "--set security.certificates=null" in only.remedy
    removed = read_job(QUICKSTART, (*issued, "security.certificates=null"), tmp_path)
    assert removed["spec"]["security"] == {"encryption": "TLS", "certificates": None}
