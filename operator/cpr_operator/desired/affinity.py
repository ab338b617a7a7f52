"""Excludes one node from a pod's affinity, in addition to the template's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def keeping_off(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Exclude the node. Node selector terms are alternatives, so each of them gets the requirement."""
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    narrowed = [{**term, "matchFields": [*(term.get("matchFields") or ()), elsewhere]} for term in terms]
    return {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: {"nodeSelectorTerms": narrowed}}}
