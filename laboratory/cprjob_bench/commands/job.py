"""The CPRJob of a bench."""

from __future__ import annotations

from typing import Any

from cpr_operator.api.spec import API_VERSION, KIND


def bench_job(name: str, **spec: Any) -> dict[str, Any]:
    """A CPRJob as a document. No operator recovers it, so its budget has no effect."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "none", "accuracyBudget": {"portionOfLostSamples": 0.1}, **spec},
    }
