"""CertificateRequests of cert-manager: changed as `reconcile.issuance` decides."""

from __future__ import annotations

import logging

from cpr_operator.cluster.protocol import BusyError, Cluster, NotFoundError, RefusedError, UnavailableError
from cpr_operator.reconcile import Job, Outcome
from cpr_operator.reconcile.types import CreateRequest, DeleteRequest, Obstacle

logger = logging.getLogger(__name__)

FIELD = "spec.security.certificates.issuerRef"


async def change_requests(cluster: Cluster, job: Job, outcome: Outcome) -> Obstacle | None:
    """Make the outcome's changes of CertificateRequests. Returns the obstacle if the server refuses one.

    The next pass decides again. The server calls a webhook of cert-manager, so a create fails while that is down.
    """
    try:
        for change in outcome.requests:
            match change:
                case CreateRequest(manifest=manifest):
                    await cluster.create(manifest)
                case DeleteRequest(name=name):
                    await cluster.delete("CertificateRequest", job.id.namespace, name)
    except NotFoundError as error:
        remedy = f"install cert-manager, or remove {FIELD}"
        return Obstacle("CertManagerMissing", f"the cluster has no CertificateRequests ({error}): {remedy}")
    except RefusedError as error:
        return forbidden(error)
    except BusyError:
        return None
    except UnavailableError as error:
        logger.warning("%s: CertificateRequests were not changed: %s", job.id.name, error)
        return Obstacle("CertManagerUnavailable", f"{error}; {FIELD} needs cert-manager, and the operator retries")
    return None


def forbidden(error: RefusedError) -> Obstacle:
    """The obstacle that the server refuses the operator a CertificateRequest."""
    remedy = f"{FIELD} needs the chart value certManager.enabled, which lets the operator create CertificateRequests"
    return Obstacle("RequestForbidden", f"{error}; {remedy}")
