"""Parts of a valid spec that will not do what they seem to say: `cprjob validate` warns of them.

The pods that the operator would create are compared with the templates, so that no list of ignored fields is kept here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cpr_operator.api.sizes import replay_of
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.store_spec import Store
from cpr_operator.api.templates import MERGE_KEYS
from cpr_operator.api.validate import Invalid
from cpr_operator.desired.names import JobId, Role
from cpr_operator.desired.pod import PodPlan, role_spec
from cpr_operator.desired.template import APPENDED, COMPLETE, Restriction

#: Instead of a field that the operator sets itself.
_REMEDIES = {
    "restartPolicy": "remove it: the operator replaces pods, as often as spec.failurePolicy.restartLimit allows",
    "terminationGracePeriodSeconds": "remove it: the operator gives a pod the time that its saves take",
    "args": "remove it: the program's arguments are spec.model, spec.data and spec.trainers",
    "image": "state it in spec.image, which all pods of the job have",
    "env": "choose another name: the operator sets this variable",
    "runAsUser": "remove it: the trainer image runs as user 65532",
    "automountServiceAccountToken": "remove it: no pod of a job asks the API server",
}
_OWN = "remove it: the operator sets this field"
#: Labels by which other operators' pods are selected, and what pods of a CPRJob have.
_FOREIGN_LABELS = re.compile(
    r"training\.kubeflow\.org/.*|(tf-|pytorch-)?(replica-type|replica-index|job-name|job-role)"
)
_LABEL_REMEDY = "select cprjob.io/job and cprjob.io/role (trainer or shard), or remove the term"

#: What Amazon's rules say beyond the schema: docs.aws.amazon.com, "General purpose bucket naming rules".
_BUCKET_RULES: tuple[tuple[str, str], ...] = (
    (r".{0,2}", "has fewer than 3 characters"),
    (r".*(\.\.|\.-|-\.).*", "has a dot beside a dot or a hyphen"),
    (r"\d+\.\d+\.\d+\.\d+", "looks like an IP address"),
    (r"(xn--|sthree-|amzn-s3-demo-).*", "begins with a reserved prefix"),
    (r".*(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)", "ends in a reserved suffix"),
)


def warnings(spec: CPRJobSpec) -> tuple[Invalid, ...]:
    """What a valid spec says in vain, and what the default configuration of operator and S3 refuses."""
    plan = PodPlan(JobId("", "job", "uid"), spec, spec.image, "{}", 0, replay=replay_of(spec), restart_rules=True)
    roles: tuple[tuple[Role, str, Mapping[str, Any]], ...] = (
        ("trainer", "spec.trainers.template", spec.trainers.template),
        ("shard", "spec.shards.template", spec.shards.template),
    )
    found: list[Invalid] = []
    for role, field, template in roles:
        stated = template.get("spec") or {}
        found += _ignored(stated, role_spec(plan, role), f"{field}.spec")
        found += _foreign_labels(stated, f"{field}.spec")
    if refused := Restriction().refuses(spec):
        field, _, rest = refused.partition(": ")
        message, _, remedy = rest.partition("; ")
        found.append(Invalid(field, f"{message} by the operator's default configuration (restrictTemplates)", remedy))
    stores = {"spec.snapshots.store": spec.snapshots.store, "spec.data.store": spec.data.store}
    for field, store in stores.items():
        if isinstance(store, Store) and not store.endpoint.startswith("file:"):
            found += _bucket(store.bucket, f"{field}.bucket")
    return tuple(found)


def _ignored(stated: Any, made: Any, field: str) -> Iterator[Invalid]:
    """Each part of a template that the pod does not have, as it is merged (`template.merge`)."""
    name = re.sub(r"\[.*", "", field.rpartition(".")[2])
    if name in COMPLETE | APPENDED | {"resources"} or stated is None:
        return  # with what the operator adds, all of it stays
    if isinstance(stated, Mapping) and isinstance(made, Mapping):
        for key, value in stated.items():
            yield from _ignored(value, made.get(key), f"{field}.{key}")
    elif isinstance(stated, list) and isinstance(made, list) and name in MERGE_KEYS:
        key = MERGE_KEYS[name]
        there = {item[key]: item for item in made}
        for item in stated:
            yield from _ignored(item, there.get(item[key]), f"{field}[{item[key]}]")
    elif stated != made:
        remedies = (_REMEDIES[part] for part in reversed(re.findall(r"\w+", field)) if part in _REMEDIES)
        yield Invalid(field, "is ignored", next(remedies, _OWN))


def _foreign_labels(node: Any, field: str) -> Iterator[Invalid]:
    """Selectors of a template that no pod of a CPRJob can match."""
    match node:
        case {"matchLabels": dict(labels)}:
            wrong = [key for key in labels if _FOREIGN_LABELS.fullmatch(str(key))]
        case {"key": str(key), "operator": _} if _FOREIGN_LABELS.fullmatch(key):
            wrong = [key]
        case _:
            wrong = []
    yield from (Invalid(field, f"no pod of a CPRJob has the label {key}", _LABEL_REMEDY) for key in wrong)
    children: Iterator[tuple[str, Any]] = iter(())
    if isinstance(node, Mapping):
        children = ((f"{field}.{key}", value) for key, value in node.items())
    elif isinstance(node, list):
        children = ((f"{field}[{number}]", value) for number, value in enumerate(node))
    for path, child in children:
        yield from _foreign_labels(child, path)


def _bucket(name: str, field: str) -> Iterator[Invalid]:
    for pattern, wrong in _BUCKET_RULES:
        if re.fullmatch(pattern, name):
            yield Invalid(field, f"{name} {wrong}: Amazon S3 has no such bucket", "choose another bucket")
