"""Checks the parts of a pod template that the operator merges. The API server checks all other parts.

The CRD accepts any template, with any value in place of a map or a list. A template that passes these checks can be
merged and built into a pod without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cpr_contract import env
from cpr_operator.api.rules.rule import Invalid

#: The key that identifies the items of each list in a pod, as in Kubernetes' strategic merge.
#: Other lists are replaced.
MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_CONTAINER_LISTS = ("env", "ports", "volumeMounts")
_TERMS = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
#: MiB of memory that a container requests and is limited to if its template names no resources.
DEFAULT_MIB = 2048
#: The package that the trainer image runs.
_PROGRAM = "cpr_trainer"
#: A shell, and its option that takes a script, as in bash -ec.
_SHELL, _SCRIPT = re.compile(r"(^|/)(ba|da|a|k|z)?sh$"), re.compile(r"-[a-z]*c")
_REMEDY = "write it as in a PodTemplateSpec: kubectl explain pod"


def misshapen(template: Mapping[str, Any]) -> Invalid | None:
    """Return the first part of a template that cannot be merged, with its path below the template, or None."""
    return next(_bad_parts(template), None)


def misplaced(template: Mapping[str, Any]) -> Invalid | None:
    """Return why the pods of a template that can be merged could not train, or None.

    Templates for other operators use other names for the container that trains, and start other programs.
    """
    containers: list[Mapping[str, Any]] = (template.get("spec") or {}).get("containers") or []
    names = [str(each["name"]) for each in containers]
    if not containers:
        return None
    if env.MAIN_CONTAINER not in names:
        message = f"has {', '.join(names)} and no main, in which the operator runs the trainer image"
        return Invalid("spec.containers", message, "rename the container that trains to main; if none does, add main")
    number = names.index(env.MAIN_CONTAINER)
    command = containers[number].get("command")
    words = command if isinstance(command, list) else [command]
    if command and (not any(_PROGRAM in str(word) for word in words) or _drops_arguments(words)):
        message = "would get the operator's arguments in place of the trainer image's program"
        remedy = f"remove it; a wrapper must end in the words python3, -m, {_PROGRAM} and pass on what follows them"
        return Invalid(f"spec.containers[{number}].command", message, remedy)
    return None


def _drops_arguments(words: list[Any]) -> bool:
    """Return whether a shell runs a script in the last word, which gets the operator's argument, the role, as $0."""
    *before, script = map(str, words)
    return (
        bool(before) and bool(_SHELL.search(before[0])) and bool(_SCRIPT.fullmatch(before[-1])) and "$0" not in script
    )


def _bad_parts(template: Mapping[str, Any]) -> Iterator[Invalid]:
    yield from _maps(template, ("metadata",))
    yield from _maps(template, ("spec",))
    meta, spec = template.get("metadata"), template.get("spec")
    if isinstance(meta, Mapping):
        for part in ("labels", "annotations"):
            yield from _maps(meta, (part,), "metadata")
    if not isinstance(spec, Mapping):
        return
    yield from _maps(spec, ("securityContext",), "spec")
    yield from _maps(spec, ("affinity", *_TERMS), "spec")
    yield from _lists(spec, "tolerations", "spec")
    yield from _lists(spec, "volumes", "spec")
    yield from _lists(spec, "containers", "spec")
    for number, container in enumerate(_items(spec, "containers")):
        for part in _CONTAINER_LISTS:
            yield from _lists(container, part, f"spec.containers[{number}]")
    affinity = spec.get("affinity")
    if isinstance(affinity, Mapping):
        yield from _node_terms(affinity)


def _node_terms(affinity: Mapping[str, Any]) -> Iterator[Invalid]:
    """Check the terms to which a requirement is added when a pod has to avoid a node."""
    required: Any = affinity
    for part in _TERMS:
        required = (required.get(part) or {}) if isinstance(required, Mapping) else {}
    if not isinstance(required, Mapping):
        return
    where = ".".join(("spec.affinity", *_TERMS))
    yield from _lists(required, "nodeSelectorTerms", where)
    for number, term in enumerate(_items(required, "nodeSelectorTerms")):
        yield from _lists(term, "matchFields", f"{where}.nodeSelectorTerms[{number}]")


def _maps(parent: Mapping[str, Any], path: tuple[str, ...], where: str = "") -> Iterator[Invalid]:
    """Yield the first part along `path` that is not a map. Absent and null parts are accepted."""
    value: Any = parent
    for part in path:
        value, where = value.get(part), f"{where}.{part}".removeprefix(".")
        if value is None:
            return
        if not isinstance(value, Mapping):
            yield Invalid(where, f"must be a map, not {_kind(value)}", _REMEDY)
            return


def _lists(parent: Mapping[str, Any], part: str, where: str) -> Iterator[Invalid]:
    """Yield the invalid items of a list of maps, including those without the key that identifies them."""
    value, path = parent.get(part), f"{where}.{part}"
    if value is None:
        return
    if not isinstance(value, list):
        yield Invalid(path, f"must be a list of maps, not {_kind(value)}", _REMEDY)
        return
    key = MERGE_KEYS.get(part)
    for number, item in enumerate(value):
        if not isinstance(item, Mapping):
            yield Invalid(f"{path}[{number}]", f"must be a map, not {_kind(item)}", _REMEDY)
        elif key is not None and (not isinstance(named := item.get(key), str | int) or isinstance(named, bool)):
            yield Invalid(f"{path}[{number}].{key}", "is missing, or neither a string nor a number", _REMEDY)


def _items(parent: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    value = parent.get(part)
    return [item if isinstance(item, Mapping) else {} for item in value] if isinstance(value, list) else []


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", type(None): "null"}
    return names.get(type(value), "a list" if isinstance(value, list) else "a map")
