"""Keeping a pod off one node, beside whatever its template asks of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def keeping_off(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """`affinity` with one more requirement: not this node. Terms are alternatives, so each of them gets it."""
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    narrowed = [{**term, "matchFields": [*(term.get("matchFields") or ()), elsewhere]} for term in terms]
    return {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: {"nodeSelectorTerms": narrowed}}}
