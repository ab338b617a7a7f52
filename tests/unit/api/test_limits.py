"""The size of a job's description at the limits of tables, features and numbers."""

from __future__ import annotations

from cpr_contract.codec import from_json, to_json
from cpr_contract.packing import LONGEST, is_packed, pack, unpack
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from support.documents import edited
from support.limits import largest


def test_a_job_at_all_limits_is_described_in_what_a_pod_can_hold() -> None:
    job = to_job_spec(parse_spec(largest()["spec"]), "uid", "name")
    packed = pack(to_json(job))
    assert is_packed(packed)
    assert len(packed) < LONGEST
    assert from_json(JobSpec, unpack(packed)) == job


def test_a_lost_table_is_named_also_where_the_api_server_does_not_look() -> None:
    (invalid,) = validate(edited({"spec.model.features.2047.table": "lost"}, largest()))
    assert (invalid.field, "a table that there is not" in invalid.message) == ("spec.model.features", True)


def test_one_with_names_that_are_too_long_is_refused_before_it_starts() -> None:
    (invalid,) = validate(largest(extra=35))
    assert invalid.field == "spec.model"
    assert f"{LONGEST} are the most" in invalid.message
