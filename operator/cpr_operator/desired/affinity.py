"""Adds to a pod's affinity where it should not run. The template's own terms stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HEAVIEST = 100


def keeping_off(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Exclude the node. Node selector terms are alternatives, so each of them gets the requirement."""
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    narrowed = [{**term, "matchFields": [*(term.get("matchFields") or ()), elsewhere]} for term in terms]
    return {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: {"nodeSelectorTerms": narrowed}}}


def keeping_apart(affinity: Mapping[str, Any], selector: Mapping[str, Any]) -> dict[str, Any]:
    """Prefer nodes without pods of this selector. Where there are none, any node is better than none."""
    apart = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    of_pods = affinity.get("podAntiAffinity") or {}
    preferred = [*(of_pods.get(_PREFERRED) or ()), {"weight": _HEAVIEST, "podAffinityTerm": apart}]
    return {**affinity, "podAntiAffinity": {**of_pods, _PREFERRED: preferred}}
