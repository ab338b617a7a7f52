from __future__ import annotations

from pathlib import Path

import pytest

from cpr_operator.api.validate import validate
from cpr_operator.api.yaml_text import read_documents
from support.bound_cases import BOUNDS
from support.documents import ABSENT, Case, edited
from support.rule_cases import RULES

EXAMPLES = sorted(Path(__file__).parents[3].glob("examples/**/*.yaml"))


def case_id(case: Case) -> str:
    return f"{case.field}-{case.message}"


@pytest.mark.parametrize("case", RULES + BOUNDS, ids=case_id)
def test_validate_accepts_valid_specs_and_names_invalid_fields(case: Case) -> None:
    assert validate(edited(case.good)) == ()
    (invalid,) = validate(edited(case.bad))
    assert invalid.field == case.field
    assert case.message in invalid.message
    assert invalid.remedy


def test_validate_names_all_invalid_fields_at_once() -> None:
    document = edited(
        {
            "kind": "CPRJobs",
            "metadata.name": "Bad_Name",
            "spec.image": ABSENT,
            "spec.modle": {},
            "spec.model.bottomMlp": [5],
            "spec.model.topMlp": [],
            "spec.model.tables.1.row": 3,
            "spec.data.batchSize": "64",
            "spec.data.samples": ABSENT,
            "spec.snapshots.store.endpoint": "store:9000",
            "spec.snapshots.interval": {"mode": "Fixed"},
        }
    )
    assert {invalid.field for invalid in validate(document)} == {
        "kind",
        "metadata.name",
        "spec.image",
        "spec.modle",
        "spec.model.bottomMlp",
        "spec.model.topMlp",
        "spec.model.tables[1].row",
        "spec.data.batchSize",
        "spec.data.samples",
        "spec.snapshots.store.endpoint",
        "spec.snapshots.interval.seconds",
    }


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("spec.acuracyBudget", "did you mean accuracyBudget?"),
        ("spec.model.embedding_dim", "did you mean embeddingDim?"),
        ("spec.model.tables.0.row", "did you mean rows?"),
        ("spec.snapshots.store.buckt", "did you mean bucket?"),
        ("spec.data.zzz", "format, uri, version, store, entrypoint, columns, header"),
    ],
)
def test_unknown_field_is_refused_with_a_similar_name(path: str, meant: str) -> None:
    (invalid,) = validate(edited({path: 1}))
    assert invalid.message == "is not a field of a CPRJob"
    assert meant in invalid.remedy


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_document_other_than_an_object_is_refused(document: object) -> None:
    (invalid,) = validate(document)
    assert invalid.message == "is not an object"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.name))
def test_example_jobs_are_valid(file: Path) -> None:
    jobs = [d for d in read_documents(file.read_bytes()) if d["kind"] == "CPRJob"]
    assert [validate(job) for job in jobs] == [()] * len(jobs)
