"""The pod that deletes the saves of a job that is being deleted. Its resources are small."""

from __future__ import annotations

from cpr_contract import env
from cpr_operator.desired.names import cleanup_labels, cleanup_name, metadata
from cpr_operator.desired.pod import PodPlan
from cpr_operator.desired.store_pod import Manifest, store_pod

#: Enough to list and delete objects with torch loaded, which comes with the image's code.
RESOURCES = {"cpu": "250m", "memory": "512Mi"}


def cleanup_pod(plan: PodPlan, attempt: int, spared: tuple[str, ...]) -> Manifest:
    """The pod of one attempt. It spares all objects that the anchors `spared` (keys) need."""
    own = metadata(plan.job, cleanup_name(plan.job, attempt)) | {"labels": cleanup_labels(plan.job, attempt)}
    container = {
        "args": [env.ROLE_CLEANUP, *(word for key in spared for word in ("--spare", key))],
        "resources": {"requests": RESOURCES, "limits": RESOURCES},
    }
    return store_pod(plan, own, container)
