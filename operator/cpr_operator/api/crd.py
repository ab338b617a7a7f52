"""Generates the CustomResourceDefinition from the models: `python -m cpr_operator.api.crd` prints it.

Pydantic's JSON schema (2020-12) is converted to the structural schema of a CustomResourceDefinition (OpenAPI 3.0).
`--check FILE` exits 1 if the file differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cpr_operator.api import rules, transitions
from cpr_operator.api.base import Model
from cpr_operator.api.cprjob_spec import GROUP, KIND, PLURAL, VERSION, CPRJobSpec
from cpr_operator.api.status import Status

Schema = dict[str, Any]

#: Keywords of JSON schema that OpenAPI 3.0 lacks, or has under other names.
_TRANSLATED: Mapping[str, Callable[[Any], Schema]] = {
    "$defs": lambda _: {},
    "title": lambda _: {},
    "propertyNames": lambda _: {},
    "const": lambda value: {"enum": [value]},
    "description": lambda text: {"description": " ".join(text.split())},
    "exclusiveMinimum": lambda bound: {"minimum": bound, "exclusiveMinimum": True},
    "exclusiveMaximum": lambda bound: {"maximum": bound, "exclusiveMaximum": True},
}
#: Additional keywords of Kubernetes, by type.
_FOR_TYPE: Mapping[str, Schema] = {
    "integer": {"format": "int64"},
    "array": {"x-kubernetes-list-type": "atomic"},
}
NAME = f"{PLURAL}.{GROUP}"
HASH_ANNOTATION = f"{GROUP}/schema-hash"
HEADER = "# Generated from cpr_operator.api by `make crds`: do not edit.\n"


class Column(NamedTuple):
    """A printer column; a wide one is shown by `kubectl get -o wide` only."""

    name: str
    type: str
    path: str
    wide: bool = False


#: The columns of `kubectl get cprjobs`.
COLUMNS = (
    Column("Phase", "string", ".status.phase"),
    Column("Progress", "string", ".status.shown.progress"),
    Column("Interval", "string", ".status.shown.interval"),
    Column("Spent", "string", ".status.shown.spent"),
    Column("Limit", "string", ".status.shown.limit"),
    Column("AUC", "string", ".status.shown.auc"),
    Column("Restarts", "integer", ".status.restarts"),
    Column("Mode", "string", ".status.plan.mode", wide=True),
    Column("Speed", "string", ".status.shown.speed", wide=True),
    Column("ETA", "string", ".status.shown.eta", wide=True),
    Column("Goodput", "string", ".status.shown.goodput", wide=True),
    Column("Published", "date", ".status.published.time", wide=True),
    Column("Shards", "integer", ".spec.shards.replicas", wide=True),
    Column("Trainers", "integer", ".spec.trainers.replicas", wide=True),
    Column("Age", "date", ".metadata.creationTimestamp"),
)

#: `kubectl scale` and autoscalers change the number of trainers. The status has the present number.
SCALE = {
    "specReplicasPath": ".spec.trainers.replicas",
    "statusReplicasPath": ".status.scale.replicas",
    "labelSelectorPath": ".status.scale.selector",
}


def build() -> dict[str, Any]:
    """Return the CustomResourceDefinition as plain values."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": dict(SCALE)},
        "additionalPrinterColumns": [
            {"name": each.name, "type": each.type, "jsonPath": each.path, **({"priority": 1} if each.wide else {})}
            for each in COLUMNS
        ],
        "schema": {"openAPIV3Schema": _schema()},
    }
    text = json.dumps(version, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "annotations": {HASH_ANNOTATION: digest}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "cprjob",
                "shortNames": ["cpr"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def schema_hash() -> str:
    """Return the hash in the `HASH_ANNOTATION` of this operator's CRD."""
    return str(build()["metadata"]["annotations"][HASH_ANNOTATION])


def render() -> str:
    """Return the CustomResourceDefinition as YAML."""
    return HEADER + yaml.safe_dump(build(), sort_keys=False, width=120, allow_unicode=True)


def structural(model: type[Model], *, defaults: bool) -> Schema:
    """Return the schema of one model. With `defaults` the API server adds the defaults of absent fields."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    return _node(source, source.get("$defs", {}), defaults=defaults)


def stored(value: Any, schema: Schema) -> Any:
    """Return a JSON value as the API server stores it: without nulls, with defaults, and numbers of the schema's type.

    Values that do not match the schema stay unchanged.
    """
    match value:
        case dict() if "properties" in schema:
            known = schema["properties"]
            stated = {name: each for name, each in value.items() if each is not None}
            defaults = {name: below["default"] for name, below in known.items() if "default" in below}
            return {name: stored(each, known.get(name, {})) for name, each in (defaults | stated).items()}
        case list() if "items" in schema:
            return [stored(each, schema["items"]) for each in value]
        case int() if schema.get("type") == "number" and not isinstance(value, bool):
            return float(value)
        case _:
            return value


def main(arguments: list[str] | None = None) -> int:
    """Print the CRD, or compare a file with it. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cpr_operator.api.crd", description="Print the CRD as YAML.")
    parser.add_argument("--check", metavar="FILE", type=Path, help="exit 1 if FILE differs from the output")
    file: Path | None = parser.parse_args(arguments).check
    if file is None:
        sys.stdout.write(render())
        return 0
    if file.exists() and file.read_text(encoding="utf-8") == render():
        return 0
    sys.stderr.write(f"{file} differs from the models: run `make crds`\n")
    return 1


def _schema() -> Schema:
    root: Schema = {
        "type": "object",
        "description": "A training job that recovers embedding shards individually, within an accuracy budget.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(CPRJobSpec, defaults=True),
            "status": structural(Status, defaults=False),
        },
    }
    for rule in (*rules.STATIC, *transitions.TRANSITIONS):
        if not rule.cel:
            continue
        node = root
        for name in rule.at.split(".") if rule.at else ():
            node = node["properties"][name.removesuffix("[]")]
            if name.endswith("[]"):
                node = node["items"]
        node.setdefault("x-kubernetes-validations", []).append({"rule": rule.server_cel, "message": rule.text})
    return root


def _node(node: Schema, definitions: Mapping[str, Schema], *, defaults: bool) -> Schema:
    """Convert a node of the schema with its children."""
    below = partial(_node, definitions=definitions, defaults=defaults)
    out: Schema = {}
    for keyword, value in _resolved(node, definitions).items():
        match keyword, value:
            case "properties", _:
                out[keyword] = {name: below(child) for name, child in value.items()}
            case "items", _:
                out[keyword] = below(value)
            case "prefixItems", [first, *_]:  # a tuple here repeats one type
                out["items"] = below(first)
            case "additionalProperties", dict():
                out[keyword] = below(value)
            case "additionalProperties", _:  # the API server prunes fields that an object does not list
                pass
            case "default", _:
                if defaults and value is not None:
                    out[keyword] = _stated(value)
            case _:
                out |= _TRANSLATED.get(keyword, lambda same, name=keyword: {name: same})(value)
    return _FOR_TYPE.get(str(out.get("type")), {}) | out


def _resolved(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Resolve a choice and a reference of a node. Keywords next to these take precedence."""
    if "anyOf" in node:  # `X or null` is X, because an absent field means the same as null
        (not_null,) = (option for option in node["anyOf"] if option.get("type") != "null")
        node = not_null | {key: value for key, value in node.items() if key != "anyOf"}
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        node = target | {key: value for key, value in node.items() if key != "$ref"}
    return node


def _stated(default: Any) -> Any:
    """Return a default without its absent fields."""
    if not isinstance(default, dict):
        return default
    return {name: _stated(value) for name, value in default.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
