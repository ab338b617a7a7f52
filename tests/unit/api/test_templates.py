"""Pod templates of any shape: refused with the field and a remedy, or merged without an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract import CONTRACT_VERSION
from cpr_contract.roster import Counters, ShardRoster
from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.validate import InvalidSpecError, parse_spec
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan, pod_manifest
from cpr_operator.desired.rosters import Document
from cpr_operator.desired.store_pod import cleanup_pod
from cpr_operator.desired.template import Restriction
from simulation.control_plane.workload import spec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MAIN = {"name": "main"}
ROSTER = ShardRoster(CONTRACT_VERSION, Counters(1, 1, 1), 0, 1, 1, True, 0, None, 1)  # noqa: FBT003
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"metadata": "x"}, "metadata", "must be a map, not a string"),
    ({"metadata": {"labels": ["x"]}}, "metadata.labels", "must be a map, not a list"),
    ({"spec": "x"}, "spec", "must be a map"),
    ({"spec": {"containers": "main"}}, "spec.containers", "must be a list of maps, not a string"),
    ({"spec": {"containers": [None]}}, "spec.containers[0]", "must be a map, not null"),
    ({"spec": {"containers": [MAIN, {}]}}, "spec.containers[1].name", "is missing"),
    ({"spec": {"containers": [{"name": ["main"]}]}}, "spec.containers[0].name", "neither a string nor a number"),
    ({"spec": {"containers": [MAIN | {"env": ["A=B"]}]}}, "spec.containers[0].env[0]", "must be a map"),
    ({"spec": {"containers": [MAIN | {"env": {"A": "B"}}]}}, "spec.containers[0].env", "must be a list of maps"),
    ({"spec": {"volumes": [None]}}, "spec.volumes[0]", "must be a map, not null"),
    ({"spec": {"tolerations": "x"}}, "spec.tolerations", "must be a list of maps"),
    ({"spec": {"affinity": "x"}}, "spec.affinity", "must be a map"),
    ({"spec": {"affinity": {"nodeAffinity": 1}}}, "spec.affinity.nodeAffinity", "must be a map, not a number"),
    (
        {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ["x"]}}}}},
        f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]",
        "must be a map",
    ),
    (
        {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": True}]}}}}},
        f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchFields",
        "must be a list of maps, not a boolean",
    ),
]


@pytest.mark.parametrize("role", ["trainers", "shards"])
@pytest.mark.parametrize(("template", "field", "message"), BAD, ids=[field for _, field, _ in BAD])
def test_template_part_of_another_type_is_named(role: str, template: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        parse_spec(spec(**{f"{role}__template": template}))
    (invalid,) = raised.value.invalid
    assert (invalid.field, invalid.remedy != "") == (f"spec.{role}.template.{field}", True)
    assert message in invalid.message


#: Words that the operator looks at, and some values of any shape below them.
WORDS = st.sampled_from(
    "metadata spec labels annotations containers initContainers env ports volumeMounts volumes tolerations affinity"
    f" nodeAffinity {REQUIRED} nodeSelectorTerms matchFields securityContext name containerPort mountPath resources"
    " topologySpreadConstraints livenessProbe httpGet host capabilities runAsUser type projected sources"
    " serviceAccountName".split()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.floats(allow_nan=False) | st.sampled_from(["main", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["main", "x"])}, optional={"env": VALUES}))
TEMPLATES = st.dictionaries(WORDS, VALUES, max_size=4) | st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({"containers": CONTAINERS | VALUES}, optional={"affinity": VALUES})}
)


@given(TEMPLATES)
def test_template_that_is_not_refused_becomes_a_pod(template: dict[str, Any]) -> None:
    try:
        parsed = parse_spec(spec(trainers__template=template, shards__template=template))
    except InvalidSpecError:
        return
    assert isinstance(Restriction().refuses(parsed), Invalid | None)
    plan = PodPlan(JobId("ns", "job", "0a1b2c3d"), parsed, "trainer:1", "{}", 30)
    assert pod_manifest(plan, Document.of(ROSTER), avoid="node-7")["spec"]["containers"]
    assert cleanup_pod(plan, 1, ())["spec"]["containers"]
