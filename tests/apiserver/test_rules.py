"""Every rule of the resource against a real API server: a document it accepts and one that it refuses."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cpr_contract.codec import MAX_GROWTH, MAX_LENGTH
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Budget, Condition, Fork, Ledger, Plan, Progress, Runtime, Shard, Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile import reconcile
from cpr_operator.reconcile.effects import with_shown
from cprjob_bench.commands.large_job import a_shard_is_lost
from support.bound_cases import BOUNDS
from support.change_cases import CHANGES, Change
from support.documents import Case, Document, edited
from support.limits import largest
from support.rule_cases import RULES

pytestmark = pytest.mark.apiserver

PATH = "/apis/cprjob.io/v1alpha1/namespaces/default/cprjobs"
STRICT = {"fieldValidation": "Strict", "dryRun": "All"}
EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/**/*.yaml"))
_numbers = itertools.count()


def case_id(case: Case | Change) -> str:
    return f"{case.field}-{case.message}" if isinstance(case, Case) else case.name


def dry_run(api: httpx.Client, document: Document) -> httpx.Response:
    return api.post(PATH, params=STRICT, json=document)


@pytest.mark.parametrize("case", RULES + BOUNDS, ids=case_id)
def test_rules_accept_valid_jobs_and_refuse_invalid_ones(api: httpx.Client, case: Case) -> None:
    good = dry_run(api, edited(case.good))
    assert good.status_code == httpx.codes.CREATED, good.text
    bad = dry_run(api, edited(case.bad))
    assert bad.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY}, bad.text
    refusal = bad.json()["message"]
    # A rule below a list names the field of any element; the path before it names the element.
    assert case.field in refusal or re.sub(r"\[\d+\]", "", case.field) in refusal
    assert case.message in refusal


@pytest.mark.parametrize("case", CHANGES, ids=case_id)
def test_rules_accept_valid_changes_and_refuse_invalid_ones(api: httpx.Client, case: Change) -> None:
    created = create(api, edited(case.before), dict(case.status))
    url = f"{PATH}/{created['metadata']['name']}"
    good = api.put(url, params=STRICT, json=edited(case.good, created))
    assert good.status_code == httpx.codes.OK, good.text
    bad = api.put(url, params=STRICT, json=edited(case.bad, created))
    assert bad.status_code == httpx.codes.UNPROCESSABLE_ENTITY, bad.text
    assert case.message in bad.json()["message"]


@pytest.mark.parametrize("case", [case for case in CHANGES if not case.always], ids=case_id)
def test_job_before_its_start_accepts_changes(api: httpx.Client, case: Change) -> None:
    created = create(api, edited(case.before), status=None)
    changed = api.put(f"{PATH}/{created['metadata']['name']}", params=STRICT, json=edited(case.bad, created))
    assert changed.status_code == httpx.codes.OK, changed.text


def test_server_fills_in_the_defaults_that_the_models_have(api: httpx.Client) -> None:
    stored = dry_run(api, edited({})).json()["spec"]
    assert stored == parse_spec(edited({})["spec"]).to_dict()
    assert stored["failurePolicy"]["restartLimit"] == {"count": 10, "windowSeconds": 3600}


def test_status_comes_back_as_it_was_written(api: httpx.Client) -> None:
    anchor = Anchor(key="u/gen-0001/dense", digest="d", generation=1, step=2, samples=3)
    status = Status(
        phase="Running",
        start_time=1.25,
        conditions=(Condition(type="Complete", status="False", reason="Training", last_transition_time=2.0),),
        runtime=Runtime(image="i", contract_version=1, template_hash="h", job_spec="{}"),
        forks=(Fork(generation=1), Fork(generation=2, anchor=anchor)),
        plan=Plan(mode="Partial", interval_seconds=1.5, inputs={"mtbfSeconds": 3.0}),
        ledger=Ledger(total_samples=10, limit_sample_shards=2, ranges=(((0, 1), (4, 6)), ())),
        shards=(Shard(index=0, incarnation=2, uid="u", may_restore=False), Shard(index=1)),
    )
    written = create(api, edited({}), status.to_dict())
    assert Status.model_validate(written["status"]) == status


def test_job_at_all_limits_is_created_started_and_changed(api: httpx.Client) -> None:
    """The rules are within the API server's budget also where they run, and the object within its store's."""
    document = largest(shards=256)
    of_pass = reconcile(a_shard_is_lost(256, 64)).status
    lost = tuple(tuple((at * 10**11, at * 10**11 + 1) for at in range(16)) for _ in range(256))
    status = of_pass.evolve(
        runtime=Runtime(image="i", contract_version=1, template_hash="h", job_spec="x" * (MAX_LENGTH + MAX_GROWTH)),
        ledger=of_pass.ledger.evolve(ranges=lost),
    )
    created = create(api, document, status.to_dict())
    url = f"{PATH}/{created['metadata']['name']}"
    changed = api.put(url, params=STRICT, json=edited({"spec.suspend": True}, created))
    assert changed.status_code == httpx.codes.OK, changed.text
    frozen = api.put(url, params=STRICT, json=edited({"spec.model.features.2047.maxLength": 7}, created))
    assert frozen.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "cannot be changed once the job has started" in frozen.json()["message"]


def test_templates_keep_unknown_fields(api: httpx.Client) -> None:
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]}}
    stored = dry_run(api, edited({"spec.shards.template": template})).json()
    assert stored["spec"]["shards"]["template"] == template


def test_kubectl_columns_show_a_job_in_training(api: httpx.Client) -> None:
    status = Status(
        phase="Running",
        progress=Progress(total_samples=100, percent=42, auc=0.8585518726719066),
        plan=Plan(mode="Partial", interval_seconds=90.0),
        budget=Budget(limit=0.1, spent=0.033333334, remaining=0.066666666),
    )
    name = create(api, edited({}), with_shown(status, "shown").to_dict())["metadata"]["name"]
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    table = api.get(f"{PATH}/{name}", headers={"Accept": accept}).json()
    row = dict(zip((column["name"] for column in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    assert (row["Phase"], row["Progress"], row["Interval"], row["AUC"]) == ("Running", "42%", "90 s", "0.8586")
    assert (row["Spent"], row["Limit"]) == ("0.03334", "0.1")
    assert api.get("/apis/cprjob.io/v1alpha1").json()["resources"][0]["shortNames"] == ["cpr"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.name))
def test_examples_are_accepted(api: httpx.Client, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        if document["kind"] == "CPRJob":
            answer = dry_run(api, document)
            assert answer.status_code == httpx.codes.CREATED, answer.text
            assert CPRJobSpec.model_validate(answer.json()["spec"]) == parse_spec(document["spec"])


def create(api: httpx.Client, document: Document, status: dict[str, Any] | None) -> Document:
    document["metadata"]["name"] = f"job-{next(_numbers)}"
    answer = api.post(PATH, params={"fieldValidation": "Strict"}, json=document)
    assert answer.status_code == httpx.codes.CREATED, answer.text
    created: Document = answer.json()
    if status is None:
        return created
    url = f"{PATH}/{created['metadata']['name']}/status"
    answer = api.put(url, params={"fieldValidation": "Strict"}, json=created | {"status": status})
    assert answer.status_code == httpx.codes.OK, answer.text
    written: Document = answer.json()
    return written
