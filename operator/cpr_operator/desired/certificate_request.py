"""The CertificateRequest of cert-manager by which an issuer signs the CA of a job."""

from __future__ import annotations

import base64

from cpr_contract.roster import key_digest
from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.desired.job_objects import Manifest
from cpr_operator.desired.names import JobId, metadata

#: 90 days, cert-manager's own default. The issuer may shorten it.
DURATION = "2160h0m0s"


def certificate_request(job: JobId, request: str, issuer: IssuerRef, number: int) -> Manifest:
    """The CertificateRequest that submits `request` (PKCS #10, PEM) for the `number`th certificate of its key.

    Its name follows from all of these, so that a repeated create finds it, and another issuer gets another one.
    """
    digest = key_digest(f"{request}{issuer.kind}.{issuer.group}/{issuer.name} {number}".encode())
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "CertificateRequest",
        "metadata": metadata(job, f"{job.stem}-ca-{digest}"),
        "spec": {
            "request": base64.b64encode(request.encode()).decode(),
            "isCA": True,
            "usages": ["cert sign"],
            "duration": DURATION,
            "issuerRef": issuer.to_dict(),
        },
    }
