"""A user's pod template: restricted, merged with the fields that the operator requires, and kept off nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.templates import MERGE_KEYS

#: Lists to which the required items are appended.
APPENDED = frozenset({"tolerations"})
#: Fields that are not merged, because the required value contains the template's.
COMPLETE = frozenset({"affinity"})

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HEAVIEST = 100

#: Fields of a pod that may have any value. For the last four, the operator's own value takes precedence.
POD_FIELDS = frozenset(
    {
        "affinity",
        "nodeSelector",
        "tolerations",
        "topologySpreadConstraints",
        "schedulerName",
        "runtimeClassName",
        "preemptionPolicy",
        "imagePullSecrets",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "hostname",
        "subdomain",
        "overhead",
        "resources",
        "restartPolicy",
        "terminationGracePeriodSeconds",
        "automountServiceAccountToken",
        "enableServiceLinks",
    }
)
#: Devices of trainers by DRA. An administrator controls which ResourceClaims and templates a namespace has.
TRAINER_FIELDS = frozenset({"resourceClaims"})
CONTAINER_FIELDS = frozenset(
    {
        "name",
        "image",
        "imagePullPolicy",
        "command",
        "args",
        "workingDir",
        "env",
        "envFrom",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "volumeMounts",
        "volumeDevices",
        "stdin",
        "tty",
        "terminationMessagePath",
        "terminationMessagePolicy",
    }
)
PROJECTED = frozenset({"configMap", "secret", "downwardAPI"})
VOLUMES = PROJECTED | {"emptyDir", "persistentVolumeClaim", "ephemeral"}
POD_SECURITY = frozenset(
    {
        "runAsGroup",
        "fsGroup",
        "fsGroupChangePolicy",
        "supplementalGroups",
        "supplementalGroupsPolicy",
    }
)
CONTAINER_SECURITY = frozenset({"runAsGroup", "readOnlyRootFilesystem"})
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
SYSTEM_PRIORITY = "system-"
_SYSTEM_CLASSES = "system priority classes are not allowed"
DEFAULT_ACCOUNT = "default"
_UNCONFINED = "container.apparmor.security.beta.kubernetes.io/"
_REMEDY = "remove it, or ask the administrator of the operator to lift restrictTemplates"


def merge(template: Mapping[str, Any], required: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `required` into `template`. In conflicts `required` takes precedence."""
    merged = dict(template)
    for key, required_value in required.items():
        given = None if key in COMPLETE else merged.get(key)
        if isinstance(required_value, Mapping) and isinstance(given, Mapping):
            merged[key] = merge(given, required_value)
        elif key in MERGE_KEYS and isinstance(given, Sequence):
            name = MERGE_KEYS[key]
            items = {item[name]: item for item in required_value}
            merged[key] = [*(merge(item, items.pop(item.get(name), {})) for item in given), *items.values()]
        elif key in APPENDED and isinstance(given, Sequence):
            merged[key] = [*given, *(item for item in required_value if item not in given)]
        else:
            merged[key] = required_value
    return merged


def keeping_off(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Exclude the node. Node selector terms are alternatives, so each of them gets the requirement."""
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    narrowed = [{**term, "matchFields": [*(term.get("matchFields") or ()), elsewhere]} for term in terms]
    return {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: {"nodeSelectorTerms": narrowed}}}


def keeping_apart(affinity: Mapping[str, Any], selector: Mapping[str, Any]) -> dict[str, Any]:
    """Prefer nodes without pods of this selector, but allow all nodes."""
    apart = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    of_pods = affinity.get("podAntiAffinity") or {}
    preferred = [*(of_pods.get(_PREFERRED) or ()), {"weight": _HEAVIEST, "podAffinityTerm": apart}]
    return {**affinity, "podAntiAffinity": {**of_pods, _PREFERRED: preferred}}


@dataclass(frozen=True, slots=True)
class Restriction:
    """The allowed contents of templates, so that `create cprjobs` grants no more than pods of the restricted standard.

    The operator creates pods with its own rights, so the rights of a template's author do not limit them. Contents that
    are not listed here are refused, also those of later releases of Kubernetes. docs/operator.md has the reasons.

    Templates may use `service_accounts` in addition to the namespace's default account.
    """

    service_accounts: frozenset[str] = frozenset()

    def refuses(self, spec: CPRJobSpec) -> Invalid | None:
        """The first disallowed part of the templates, with the remedy; None if there is none."""
        refused = self.refuses_trainers(spec) or self._refuses("spec.shards.template", spec.shards.template)
        if refused is None and (spec.shards.spare_priority_class_name or "").startswith(SYSTEM_PRIORITY):
            return _bad("spec.shards.sparePriorityClassName", _SYSTEM_CLASSES)
        return refused

    def refuses_trainers(self, spec: CPRJobSpec) -> Invalid | None:
        """The same for the trainers' template, from which cleanup pods are made."""
        return self._refuses("spec.trainers.template", spec.trainers.template, TRAINER_FIELDS)

    def _refuses(self, field: str, template: Mapping[str, Any], more: frozenset[str] = frozenset()) -> Invalid | None:
        part = next(_template(template, self.service_accounts, POD_FIELDS | more), None)
        return part and part.below(field)


def _template(template: Mapping[str, Any], accounts: frozenset[str], pod_fields: frozenset[str]) -> Iterator[Invalid]:
    yield from _others(template, frozenset({"metadata", "spec"}), "")
    meta = template.get("metadata") or {}
    yield from _others(meta, frozenset({"labels", "annotations", "name", "namespace", "creationTimestamp"}), "metadata")
    for name in meta.get("annotations") or {}:
        if name.startswith(_UNCONFINED):
            yield _bad(f"metadata.annotations.{name}", "is not allowed")
    spec = template.get("spec") or {}
    special = {"containers", "initContainers", "volumes", "securityContext", "serviceAccountName", "serviceAccount"}
    yield from _others(spec, pod_fields | special | {"priorityClassName"}, "spec")
    for field in ("serviceAccountName", "serviceAccount"):
        if spec.get(field) and str(spec[field]) not in accounts | {DEFAULT_ACCOUNT}:
            yield _bad(f"spec.{field}", f"{spec[field]!r} is not one of the accounts that templates may use")
    if str(spec.get("priorityClassName") or "").startswith(SYSTEM_PRIORITY):
        yield _bad("spec.priorityClassName", _SYSTEM_CLASSES)
    yield from _security(spec.get("securityContext"), POD_SECURITY, "spec.securityContext")
    for number, volume in _maps(spec.get("volumes")):
        yield from _volume(volume, f"spec.volumes[{number}]")
    for part in ("containers", "initContainers"):
        for number, container in _maps(spec.get(part)):
            yield from _container(container, f"spec.{part}[{number}]")


def _container(container: Mapping[str, Any], where: str) -> Iterator[Invalid]:
    yield from _others(container, CONTAINER_FIELDS | {"ports", "securityContext", "lifecycle", *PROBES}, where)
    for number, port in _maps(container.get("ports")):
        for field in ("hostPort", "hostIP"):
            if port.get(field):
                yield _bad(f"{where}.ports[{number}].{field}", "is not allowed")
    for number, mount in _maps(container.get("volumeMounts")):
        if mount.get("mountPropagation") not in (None, "", "None"):
            yield _bad(f"{where}.volumeMounts[{number}].mountPropagation", "is not allowed")
    lifecycle = _map(container.get("lifecycle"))
    handlers = {probe: container.get(probe) for probe in PROBES}
    handlers |= {f"lifecycle.{name}": handler for name, handler in lifecycle.items()}
    for name, handler in handlers.items():
        for kind in ("httpGet", "tcpSocket"):
            if _map(_map(handler).get(kind)).get("host"):
                yield _bad(
                    f"{where}.{name}.{kind}.host", "is not allowed, because the node connects to it, not the pod"
                )
    context = container.get("securityContext")
    yield from _security(context, CONTAINER_SECURITY, f"{where}.securityContext")


def _security(context: object, allowed: frozenset[str], where: str) -> Iterator[Invalid]:
    """Allow only settings that reduce rights: a user other than root, a seccomp profile, dropped capabilities."""
    given = _map(context)
    special = {"runAsUser", "runAsNonRoot", "allowPrivilegeEscalation", "capabilities", "seccompProfile"}
    yield from _others(given, allowed | special, where)
    if given.get("runAsUser") in (0, "0"):
        yield _bad(f"{where}.runAsUser", "must not be 0")
    if given.get("runAsNonRoot") is False:
        yield _bad(f"{where}.runAsNonRoot", "must not be false")
    if given.get("allowPrivilegeEscalation"):
        yield _bad(f"{where}.allowPrivilegeEscalation", "must not be true")
    yield from _others(_map(given.get("capabilities")), frozenset({"drop"}), f"{where}.capabilities")
    if _map(given.get("seccompProfile")).get("type") not in (None, "RuntimeDefault", "Localhost"):
        yield _bad(f"{where}.seccompProfile.type", "must be RuntimeDefault or Localhost")


def _volume(volume: Mapping[str, Any], where: str) -> Iterator[Invalid]:
    yield from _others(volume, VOLUMES | {"name", "projected"}, where)
    for number, source in _maps(_map(volume.get("projected")).get("sources")):
        yield from _others(source, PROJECTED, f"{where}.projected.sources[{number}]")


def _others(part: Mapping[str, Any], allowed: frozenset[str], where: str) -> Iterator[Invalid]:
    """Yield the fields that are not allowed. Empty ones are harmless."""
    for field, value in part.items():
        if field not in allowed and value:
            yield _bad(f"{where}.{field}".removeprefix("."), "is not allowed")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[tuple[int, Mapping[str, Any]]]:
    return [(n, _map(item)) for n, item in enumerate(value)] if isinstance(value, list) else []


def _bad(path: str, message: str) -> Invalid:
    return Invalid(path, message, _REMEDY)
