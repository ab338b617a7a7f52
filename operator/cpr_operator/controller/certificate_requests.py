"""CertificateRequests of cert-manager: changed as `reconcile.issuance` decides."""

from __future__ import annotations

import logging

from cpr_operator.cluster.protocol import BusyError, Cluster, NotFoundError, RefusedError, UnavailableError
from cpr_operator.reconcile import Job, Outcome
from cpr_operator.reconcile.issuance import FIELD
from cpr_operator.reconcile.types import CreateRequest, DeleteRequest, Obstacle

logger = logging.getLogger(__name__)


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
        return refusal_of(error)
    except BusyError:
        return None
    except UnavailableError as error:
        logger.warning("%s: CertificateRequests were not changed: %s", job.id.name, error)
        return Obstacle("CertManagerUnavailable", f"{error}; {FIELD} needs cert-manager, and the operator retries")
    return None


def refusal_of(error: RefusedError) -> Obstacle:
    """The obstacle that the operator lacks the right to a CertificateRequest, or that the server does not admit it."""
    if "is forbidden: User " in str(error):  # the authorizer's words
        remedy = f"{FIELD} needs the chart value certManager.enabled, which grants the operator CertificateRequests"
        return Obstacle("RequestForbidden", f"{error}; {remedy}")
    remedy = f"let quota and admission webhooks admit the operator's CertificateRequests, or correct {FIELD}"
    return Obstacle("RequestRefused", f"{error}; {remedy}")
