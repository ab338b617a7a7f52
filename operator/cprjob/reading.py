"""Reads the job of `fit` by the models of the resource, which define its names, defaults and rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpr_contract.spec import JobSpec
from cpr_operator.api.cprjob_spec import API_VERSION, KIND
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.validate import InvalidSpecError, json_text, parse_document
from cpr_operator.api.yaml_text import read_value

_NAME = "notebook"
#: Fields that the resource requires and a single process does not use, with defaults that are valid in any job.
_UNUSED = (
    (("image",), "none"),
    (("accuracyBudget",), {"portionOfLostSamples": 0.1}),
    (("shards", "replicas"), 1),
    (("snapshots", "store", "endpoint"), "file:///none"),
    (("snapshots", "store", "bucket"), "none"),
)
_INITIAL_VALUES = ("fit starts from initial values", "remove it")


def read_job(source: str | Path | Mapping[str, Any], *, own_network: bool) -> JobSpec:
    """Return the job of a manifest's file, or of a `spec`.

    own_network: the caller has a network, so `model.entrypoint` is ignored.
    Raises InvalidSpecError naming every wrong field, OSError, yaml.YAMLError.
    """
    document = _document(source)
    spec = document.get("spec") if isinstance(document, dict) else None
    for path, value in _UNUSED:
        _set_default(spec, path, value)
    if own_network and isinstance(spec, dict) and isinstance(spec.get("model"), dict):
        spec["model"]["entrypoint"] = f"{_NAME}:network"
    parsed = parse_document(document)
    given = {
        "spec.snapshots.restoreFrom": parsed.snapshots.restore_from,
        "spec.restoreFrom": parsed.restore_from,
    }
    refused = tuple(Invalid(field, *_INITIAL_VALUES) for field, value in given.items() if value is not None)
    if refused:
        raise InvalidSpecError(refused)
    return to_job_spec(parsed, _NAME, document["metadata"]["name"])


def _document(source: str | Path | Mapping[str, Any]) -> Any:
    if isinstance(source, Mapping):
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": _NAME}, "spec": dict(source)}
        return json.loads(json_text(document))
    return read_value(Path(source).read_bytes())


def _set_default(node: Any, path: tuple[str, ...], value: Any) -> None:
    """Set the value at `path` if it is absent. Validation reports parents that are not objects."""
    *parents, last = path
    for name in parents:
        node = node.setdefault(name, {}) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.setdefault(last, value)
