"""The size of a job's description at the limits of tables, features and numbers."""

from __future__ import annotations

import pytest

from cpr_contract.codec import MAX_GROWTH, MAX_LENGTH, from_json, is_packed, pack, to_json, unpack
from cpr_contract.limits import MAX_SHARDS, MAX_TRAINERS
from cpr_contract.spec import JobSpec
from cpr_operator.api.base import EXACT
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import Anchor, Counters, Fork, Runtime, Shard, Status, Trainer
from cpr_operator.api.validate import InvalidSpecError, parse_spec, validate
from cpr_operator.cluster.views import JobView
from cpr_operator.controller.job_reader import job_of
from cpr_operator.desired.rosters import Rosters
from support.documents import edited
from support.limits import largest

#: The bytes that Kubernetes allows all annotations of an object together.
ANNOTATIONS = 256 << 10


def test_description_of_a_job_at_all_limits_fits_into_a_pod() -> None:
    job = to_job_spec(parse_spec(largest()["spec"]), "uid", "name")
    packed = pack(to_json(job))
    assert is_packed(packed)
    assert len(packed) < MAX_LENGTH
    assert from_json(JobSpec, unpack(packed)) == job


def test_missing_table_is_named_where_the_api_server_skips_the_rule() -> None:
    (invalid,) = validate(edited({"spec.model.features.2047.table": "lost"}, largest()))
    assert (invalid.field, "a table that does not exist" in invalid.message) == ("spec.model.features", True)


def test_job_too_large_for_the_api_server_with_its_status_is_refused_while_running_too() -> None:
    assert validate(largest(shards=256)) == ()
    (invalid,) = validate(largest(shards=MAX_SHARDS))
    assert invalid.field == "spec"
    assert "with 1025 shards and trainers" in invalid.message
    with pytest.raises(InvalidSpecError, match="with 1025 shards and trainers"):
        parse_spec(largest(shards=MAX_SHARDS)["spec"])


def test_operator_refuses_a_too_large_job_but_keeps_a_running_one() -> None:
    (invalid,) = validate(largest(extra=6))
    assert (invalid.field, f"more than {MAX_LENGTH} characters" in invalid.message) == ("spec.model", True)
    view = JobView("ns", "job", "uid", 1, "1", 0.0, deleting=False, spec=largest(extra=6)["spec"])
    with pytest.raises(InvalidSpecError, match="more than"):
        job_of(view)
    runtime = Runtime(image="i", contract_version=1, template_hash="h", job_spec="{}")
    running = JobView(
        "ns", "job", "uid", 1, "1", 0.0, deleting=False, spec=view.spec, status=Status(runtime=runtime).to_dict()
    )
    assert len(job_of(running).spec.model.features or ()) == 2048


def test_longest_roster_and_description_fit_into_the_annotations_of_one_pod() -> None:
    address, anchor = (
        "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
        Anchor(key="k" * 256, digest="d" * 64, generation=9999, step=10**12, samples=EXACT),
    )
    status = Status(
        counters=Counters(generation=9999, group=99999, roster=9_999_999),
        forks=(Fork(generation=1, anchor=anchor),),
        shards=tuple(
            Shard(index=index, incarnation=999, uid="u", host=address, allowance=10**13) for index in range(MAX_SHARDS)
        ),
        trainers=tuple(Trainer(index=index, incarnation=999, uid="u", host=address) for index in range(MAX_TRAINERS)),
    )
    annotations = Rosters(status).document(status.trainers[-1], 999).annotations
    roster = sum(len(name) + len(text) for name, text in annotations.items())
    assert roster > 130_000, "it has all that makes it long"
    assert roster + MAX_LENGTH + MAX_GROWTH < ANNOTATIONS
