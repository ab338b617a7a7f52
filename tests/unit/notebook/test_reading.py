"""`fit` reads manifests as the operator does, except fields that one process does not use."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import InvalidSpecError, parse_spec, validate
from cprjob.reading import read_job
from support.documents import ABSENT, OWN_MODEL, Document, Edits, edited

EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))
    if next(yaml.safe_load_all(path.read_text()))["kind"] == "CPRJob"
]
UNUSED: Edits = {f"spec.{name}": ABSENT for name in ("image", "accuracyBudget", "snapshots")}
NO_LAYERS: Edits = {"spec.model.bottomMlp": ABSENT, "spec.model.topMlp": ABSENT}


def read(edits: Edits, *, own_network: bool = False) -> JobSpec:
    """Read a small job that states only what `fit` needs."""
    return read_job(edited(edits, edited(UNUSED))["spec"], own_network=own_network)


def job_of(document: Document) -> JobSpec:
    return to_job_spec(parse_spec(document["spec"]), "notebook", document["metadata"]["name"])


def wrong_fields(source: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidSpecError) as caught:
        read_job(source, own_network=False)
    return tuple(each.field for each in caught.value.invalid)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_manifest_is_read_as_by_the_operator(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    if "restoreFrom" in document["spec"]:
        assert wrong_fields(path) == ("spec.restoreFrom",)
    else:
        assert read_job(str(path), own_network=False) == job_of(document)


def test_fields_of_clusters_are_optional() -> None:
    full, found = job_of(edited({})), read({})
    assert (found.model, found.data, found.precision) == (full.model, full.data, full.precision)


@pytest.mark.parametrize("sparse_updates", ["Auto", "PerStep", "PerPush"])
def test_single_process_has_nothing_to_merge(sparse_updates: str) -> None:
    found = read({"spec.trainers.sparseUpdates": sparse_updates})
    assert found.sparse_updates == ("PerPush" if sparse_updates == "PerPush" else "PerStep")
    assert not found.per_step


@pytest.mark.parametrize(
    "edits",
    [{"spec.model.tables": [{"name": "a", "rows": 1}]}, {"spec.recovery": {"mode": "Partial"}}],
    ids=["one row", "partial"],
)
def test_nothing_that_was_left_out_breaks_a_rule(edits: Edits) -> None:
    read(edits)


def test_given_values_stay_and_the_callers_objects_are_unchanged() -> None:
    spec = edited(UNUSED | {"spec.shards": {"replicas": 3}})["spec"]
    spec["snapshots"] = {"store": {"endpoint": "https://store", "region": "here"}}
    before = copy.deepcopy(spec)
    found = read_job(spec, own_network=True)
    assert (found.snapshots.store.endpoint, found.snapshots.store.region, found.shards) == ("https://store", "here", 3)
    assert spec == before


def test_wrong_fields_are_reported_as_by_validate(tmp_path: Path) -> None:
    document = edited({"spec.model.embedding_dim": 8, "spec.model.tables.1.rows": "5", "spec.image": ""})
    expected = validate(document)
    assert len(expected) == 3
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(document))
    for source in (document["spec"], manifest):
        with pytest.raises(InvalidSpecError) as caught:
            read_job(source, own_network=False)
        assert caught.value.invalid == expected
    assert "spec.model.embedding_dim: is not a field of a CPRJob; did you mean embeddingDim?" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, ("spec.model", "spec.data")),
        ({"model": 3, "data": 4}, ("spec.model", "spec.data")),
        (
            {"shards": None, "snapshots": {"store": 5}},
            ("spec.model", "spec.data", "spec.shards", "spec.snapshots.store"),
        ),
    ],
)
def test_value_that_is_no_object_is_refused_by_its_field(spec: Document, fields: tuple[str, ...]) -> None:
    assert wrong_fields(spec) == fields


@pytest.mark.parametrize(
    ("text", "fields"),
    [("", ("",)), ("- 1", ("",)), ("spec: 3", ("apiVersion", "kind", "metadata", "spec"))],
    ids=["empty", "list", "no manifest"],
)
def test_file_without_a_manifest_is_refused(tmp_path: Path, text: str, fields: tuple[str, ...]) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(text)
    assert wrong_fields(manifest) == fields


def test_restore_sources_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec.snapshots.restoreFrom: .* initial values; remove it"):
        read({"spec.snapshots": {"restoreFrom": "key"}})
    with pytest.raises(InvalidSpecError, match=r"spec.restoreFrom: fit starts from initial values; remove it"):
        read({"spec.restoreFrom": {"job": "yesterday"}})


@pytest.mark.parametrize(
    "entrypoint", [{}, OWN_MODEL, {"spec.model.entrypoint": "no name"}], ids=["none", "own", "bad"]
)
def test_a_network_of_the_notebook_needs_no_layers_and_replaces_the_entrypoint(entrypoint: Edits) -> None:
    assert read(NO_LAYERS | entrypoint, own_network=True).model.bottom_mlp == ()


def test_a_dlrm_needs_its_layers() -> None:
    assert wrong_fields(edited(NO_LAYERS | UNUSED)["spec"]) == ("spec.model.bottomMlp", "spec.model.topMlp")
