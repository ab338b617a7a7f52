"""What pod templates may say where `create cprjobs` is not to grant more than pods of the restricted kind.

The operator creates pods with rights of its own, so a template is not held by its author's. Here is what it may
contain; everything else is refused, whatever later releases of Kubernetes add. docs/operator.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cpr_operator.api.rules import BadPart
from cpr_operator.api.spec import CPRJobSpec

#: Fields of a pod that may have any value; of the last four the operator's own value wins.
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
VOLUMES = frozenset(
    {
        "emptyDir",
        "persistentVolumeClaim",
        "configMap",
        "secret",
        "downwardAPI",
        "ephemeral",
    }
)
PROJECTED = frozenset(
    {
        "configMap",
        "secret",
        "downwardAPI",
    }
)
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
DEFAULT_ACCOUNT = "default"
_UNCONFINED = "container.apparmor.security.beta.kubernetes.io/"
_REMEDY = "remove it, or ask the administrator of the operator to lift restrictTemplates"


@dataclass(frozen=True, slots=True)
class Restriction:
    """What templates may say. `service_accounts` are those that they may name beside the namespace's default."""

    service_accounts: frozenset[str] = frozenset()

    def refuses(self, spec: CPRJobSpec) -> str:
        """The first part of the templates that is not allowed, with the remedy; empty if all is."""
        return self.refuses_trainers(spec) or self._refuses("spec.shards.template", spec.shards.template)

    def refuses_trainers(self, spec: CPRJobSpec) -> str:
        """The same of the trainers' template, of which cleanups are made."""
        return self._refuses("spec.trainers.template", spec.trainers.template)

    def _refuses(self, field: str, template: Mapping[str, Any]) -> str:
        part = next(_template(template, self.service_accounts), None)
        return f"{field}.{part.path}: {part.message}; {part.remedy}" if part else ""


def _template(template: Mapping[str, Any], accounts: frozenset[str]) -> Iterator[BadPart]:
    yield from _others(template, frozenset({"metadata", "spec"}), "")
    meta = template.get("metadata") or {}
    yield from _others(meta, frozenset({"labels", "annotations", "name", "namespace", "creationTimestamp"}), "metadata")
    for name in meta.get("annotations") or {}:
        if name.startswith(_UNCONFINED):
            yield _bad(f"metadata.annotations.{name}", "is not allowed")
    spec = template.get("spec") or {}
    special = {"containers", "initContainers", "volumes", "securityContext", "serviceAccountName", "serviceAccount"}
    yield from _others(spec, POD_FIELDS | special | {"priorityClassName"}, "spec")
    for field in ("serviceAccountName", "serviceAccount"):
        if spec.get(field) and str(spec[field]) not in accounts | {DEFAULT_ACCOUNT}:
            yield _bad(f"spec.{field}", f"{spec[field]!r} is not one of the accounts that templates may use")
    if str(spec.get("priorityClassName") or "").startswith(SYSTEM_PRIORITY):
        yield _bad("spec.priorityClassName", "system priority classes are not allowed")
    yield from _security(spec.get("securityContext"), POD_SECURITY, "spec.securityContext")
    for number, volume in _maps(spec.get("volumes")):
        yield from _volume(volume, f"spec.volumes[{number}]")
    for part in ("containers", "initContainers"):
        for number, container in _maps(spec.get(part)):
            yield from _container(container, f"spec.{part}[{number}]")


def _container(container: Mapping[str, Any], where: str) -> Iterator[BadPart]:
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


def _security(context: object, allowed: frozenset[str], where: str) -> Iterator[BadPart]:
    """Only what takes rights away: other users than root, a profile of the runtime, capabilities dropped."""
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


def _volume(volume: Mapping[str, Any], where: str) -> Iterator[BadPart]:
    yield from _others(volume, VOLUMES | {"name", "projected"}, where)
    for number, source in _maps(_map(volume.get("projected")).get("sources")):
        yield from _others(source, PROJECTED, f"{where}.projected.sources[{number}]")


def _others(part: Mapping[str, Any], allowed: frozenset[str], where: str) -> Iterator[BadPart]:
    """The fields that are not allowed; one that says nothing does no harm."""
    for field, value in part.items():
        if field not in allowed and value:
            yield _bad(f"{where}.{field}".removeprefix("."), "is not allowed")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[tuple[int, Mapping[str, Any]]]:
    return [(n, _map(item)) for n, item in enumerate(value)] if isinstance(value, list) else []


def _bad(path: str, message: str) -> BadPart:
    return BadPart(path, message, _REMEDY)
