"""Warnings of `cprjob validate`: parts of a valid spec without the effect that they seem to have.

The pods that the operator would create are compared with the templates, so there is no list of ignored fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.frozen_settings import replay_policy, sparse_updates
from cpr_operator.api.quantities import limit_of, main_container, write_bytes
from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.sizes import shard_memory, step_traffic, steps_until_full
from cpr_operator.api.snapshots_spec import Store
from cpr_operator.api.templates import MERGE_KEYS
from cpr_operator.desired.names import JobId, Role
from cpr_operator.desired.pod import PodPlan, role_spec
from cpr_operator.desired.template import APPENDED, COMPLETE, Restriction

#: Remedies for fields that the operator sets itself.
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
#: Labels that select pods of other operators, and those that select pods of a CPRJob.
_FOREIGN_LABELS = re.compile(
    r"training\.kubeflow\.org/.*|(tf-|pytorch-)?(replica-type|replica-index|job-name|job-role)"
)
_LABEL_REMEDY = "select cprjob.io/job and cprjob.io/role (trainer or shard), or remove the term"

#: With fewer steps between two saves, saves cost more than they protect.
FEW_STEPS = 20
_GIB_BITS = 30

#: Amazon's rules beyond the schema: docs.aws.amazon.com, "General purpose bucket naming rules".
_BUCKET_RULES: tuple[tuple[str, str], ...] = (
    (r".{0,2}", "has fewer than 3 characters"),
    (r".*(\.\.|\.-|-\.).*", "has a dot next to a dot or a hyphen"),
    (r"\d+\.\d+\.\d+\.\d+", "looks like an IP address"),
    (r"(xn--|sthree-|amzn-s3-demo-).*", "begins with a reserved prefix"),
    (r".*(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)", "ends in a reserved suffix"),
)


def warnings(spec: CPRJobSpec) -> tuple[Invalid, ...]:
    """Parts of a valid spec without effect, and parts that the default configuration of operator and S3 refuses."""
    plan = PodPlan(JobId("", "job", "uid"), spec, spec.image, "{}", 0, replay=replay_policy(spec), restart_rules=True)
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
        by_default = f"{refused.message} by the operator's default configuration (restrictTemplates)"
        found.append(replace(refused, message=by_default))
    stores = {"spec.snapshots.store": spec.snapshots.store, "spec.data.store": spec.data.store}
    for field, store in stores.items():
        if isinstance(store, Store) and not store.endpoint.startswith("file:"):
            wrong = (text for pattern, text in _BUCKET_RULES if re.fullmatch(pattern, store.bucket))
            messages = (f"{store.bucket} {text}: Amazon S3 has no such bucket" for text in wrong)
            found += [Invalid(f"{field}.bucket", message, "choose another bucket") for message in messages]
    return (*found, *_too_small(spec))


def _too_small(spec: CPRJobSpec) -> Iterator[Invalid]:
    """Memory limits below the sizes that the spec implies. Containers without a limit are not checked."""
    replay = replay_policy(spec)
    field = "spec.shards.template.spec.containers[main].resources"
    limit = limit_of(main_container(spec.shards.template).get("resources"), "memory")
    memory = shard_memory(spec, replay, sparse_updates(spec).mode)
    rows, needed = memory.rows_bytes, memory.needed_bytes
    if limit is not None and limit < needed:
        verb = "cannot" if limit < rows else "may not"
        message = f"{_gib(limit)} {verb} hold a shard: it needs {_gib(needed)}, {_gib(rows)} of it for rows"
        yield Invalid(field, message, "raise it, remove it, or state more spec.shards.replicas")
    step, buffered = step_traffic(spec), steps_until_full(spec, replay)
    if replay.enabled and buffered < FEW_STEPS:
        size = _gib(replay.memory_bytes + replay.spill_bytes)
        pushed = f"a trainer pushes up to {_gib(step.pushed_bytes)} in each"
        message = f"with {size} the leader saves after every {max(buffered, 1)} steps: {pushed}"
        enough = write_bytes(-(-2 * FEW_STEPS * step.pushed_bytes >> _GIB_BITS) << _GIB_BITS)
        remedy = f"state {enough}, the pushes of {int(1.5 * FEW_STEPS)} steps, as spec.recovery.replay.memory or spill"
        yield Invalid("spec.recovery.replay.memory", message, remedy)
    field = "spec.trainers.template.spec.containers[main].resources"
    limit = limit_of(main_container(spec.trainers.template).get("resources"), "memory")
    needed = (
        spec.trainers.prefetch + 2
    ) * step.vectors_bytes  # the present step, its gradients, and the prefetched ones
    if limit is not None and limit < needed:
        message = f"{_gib(limit)} cannot hold a trainer: the vectors of its steps alone take {_gib(needed)}"
        yield Invalid(field, message, "raise it, lower spec.data.batchSize, or state more spec.trainers.replicas")


def _gib(size: int) -> str:
    return f"{size / (1 << _GIB_BITS):.3g} GiB"


def _ignored(stated: Any, made: Any, field: str) -> Iterator[Invalid]:
    """Each part of a template that the pod does not have after the merge (`template.merge`)."""
    name = re.sub(r"\[.*", "", field.rpartition(".")[2])
    if name in COMPLETE | APPENDED | {"resources"} or stated is None:
        return  # the operator only adds to these fields
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
