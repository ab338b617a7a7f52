"""Merges a user's pod template with the fields that the operator requires: lists by name, maps by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpr_operator.api.templates import MERGE_KEYS

#: Lists to which the required items are appended.
APPENDED = frozenset({"tolerations"})
#: Fields whose required value already contains the template's value, so they are not merged.
COMPLETE = frozenset({"affinity"})


def merge(template: Mapping[str, Any], required: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `required` into `template`. In conflicts `required` takes precedence."""
    merged = dict(template)
    for key, wanted in required.items():
        merged[key] = _merge_value(key, merged.get(key), wanted)
    return merged


def with_defaults(template: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Add those `defaults` whose keys the template lacks."""
    return {**defaults, **{key: value for key, value in template.items() if value is not None}}


def _merge_value(key: str, given: Any, wanted: Any) -> Any:
    if key in COMPLETE:
        return wanted
    if isinstance(wanted, Mapping) and isinstance(given, Mapping):
        return merge(given, wanted)
    if key in MERGE_KEYS and isinstance(given, Sequence):
        return _merge_items(given, wanted, MERGE_KEYS[key])
    if key in APPENDED and isinstance(given, Sequence):
        return [*given, *(item for item in wanted if item not in given)]
    return wanted


def _merge_items(given: Sequence[Any], wanted: Sequence[Any], name: str) -> list[Any]:
    required = {item[name]: item for item in wanted}
    kept = [merge(item, required.pop(item.get(name), {})) for item in given]
    return [*kept, *required.values()]
