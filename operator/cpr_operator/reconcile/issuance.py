"""The certificate of a job's CA from an issuer of cert-manager: requested, awaited, and renewed in time. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from cpr_contract import env
from cpr_contract.roster import key_digest
from cpr_operator.api.base import epoch, format_time
from cpr_operator.api.frozen_settings import is_encrypted, issuer_of
from cpr_operator.api.status import TERMINAL_PHASES, IssuedCA, Runtime, Status
from cpr_operator.cluster.issued_ca import IssuedCertificate, UnusableError, issued_certificate
from cpr_operator.cluster.protocol import Manifest, PodPatch
from cpr_operator.desired.certificate_request import certificate_request
from cpr_operator.reconcile.conditions import ConditionUpdate, condition_events, with_conditions
from cpr_operator.reconcile.effects import works
from cpr_operator.reconcile.types import (
    CreateRequest,
    DeleteRequest,
    Obstacle,
    Outcome,
    ReconcileInput,
    RequestChange,
)

#: Seconds after which a request that was denied or has failed is deleted, and made again.
RETRY_S = 600.0
#: Seconds within which issuers usually sign: so long passes over a job that waits are frequent.
PROMPT_S = 60.0
#: The most pods that get a renewed certificate in one pass.
RENEWED_PODS = 32
#: The obstacles that no issuer removes by itself.
FINAL = frozenset({"RequestDenied", "RequestInvalid", "RequestFailed", "CertificateUnusable"})
FIELD = "spec.security.certificates.issuerRef"
_WITHOUT_PODS = frozenset({"Pending", "Suspended"})
_AGAIN = "delete the CertificateRequest for another attempt at once, the operator makes one every ten minutes"


def due_request(observed: ReconcileInput) -> Manifest | None:
    """Return the CertificateRequest for the next CA of a job that may start, or for the renewed CA of one that trains.

    None if the job needs none now.
    """
    job, before = observed.job, observed.before
    if job.deleting or job.spec.suspend or before.phase in TERMINAL_PHASES or before.phase == "Suspending":
        return None
    if before.phase in _WITHOUT_PODS:
        issuer = issuer_of(job.spec, observed.encryption, observed.issuer)
        if issuer is None or retained_key(observed) is not None:
            return None
        return certificate_request(job.id, observed.next_request, issuer, 1)
    issued = before.runtime.issued if before.runtime is not None else None
    if issued is None or observed.now < issued.renew_at:
        return None
    return certificate_request(job.id, issued.request, issued.issuer, issued.number + 1)


def retained_key(observed: ReconcileInput) -> Runtime | None:
    """Return the settings before, if a job resumes with their key and CA; None if it starts, or needs others.

    A key with a CA and one without are two: a Secret is never changed. Without pods another CA costs nothing, so one
    that is due for renewal is replaced with its key.
    """
    before, spec = observed.before.runtime, observed.job.spec
    if before is None or observed.key_lost or bool(before.ca) != is_encrypted(spec, observed.encryption):
        return None
    issuer, issued = issuer_of(spec, observed.encryption, observed.issuer), before.issued
    if issued is None:
        return before if issuer is None else None
    return before if issued.issuer == issuer and observed.now < issued.renew_at else None


def awaits_certificate(observed: ReconcileInput) -> bool:
    """Return whether a job without pods may not start before its CA is issued."""
    request = due_request(observed)
    return request is not None and not isinstance(answer(observed, request), IssuedCertificate)


def next_authority(observed: ReconcileInput) -> tuple[str, IssuedCA | None]:
    """Return the certificate of a new CA (PEM), and how it was issued. Empty, None: the job is not encrypted."""
    spec = observed.job.spec
    issuer, request = issuer_of(spec, observed.encryption, observed.issuer), due_request(observed)
    if issuer is None or request is None:
        return (observed.next_ca if is_encrypted(spec, observed.encryption) else ""), None
    found = answer(observed, request)
    assert isinstance(found, IssuedCertificate), "a job does not start before its CA is issued"
    issued = IssuedCA(
        issuer=issuer,
        request=observed.next_request,
        number=1,
        chain=found.chain,
        not_after=found.not_after,
        renew_at=found.renew_at,
    )
    return found.ca, issued


def with_certificate(observed: ReconcileInput, result: Outcome) -> Outcome:
    """Return the outcome with the request for a certificate, and with a renewed one once it is issued."""
    request, status = due_request(observed), result.status
    found = None if request is None else answer(observed, request)
    if isinstance(found, IssuedCertificate):
        status = _renewed(observed, status, found)
    in_force = isinstance(found, IssuedCertificate) and status.phase not in _WITHOUT_PODS
    name = "" if request is None or in_force else str(request["metadata"]["name"])
    status = status.evolve(certificate_request=name)
    update = _condition(status, found)
    if update is not None:
        status = with_conditions(status, observed.job.spec_generation, observed.now, update)
    wake_s = result.wake_after_s
    if isinstance(found, Obstacle) and status.phase in _WITHOUT_PODS:
        prompt = observed.certificate_request is None or _age_s(observed) < PROMPT_S
        wake_s = observed.timing.changing_s if prompt and not _is_missing(found) else observed.timing.running_s
    return replace(
        result,
        status=status,
        events=(*result.events, *(condition_events(result.status, status) if update is not None else ())),
        wake_after_s=wake_s,
        renewals=tuple(islice(_renewals(observed, status), RENEWED_PODS)) if result.needs_prerequisites else (),
        requests=tuple(_changes(observed, request, found)),
    )


def answer(observed: ReconcileInput, request: Manifest) -> IssuedCertificate | Obstacle:
    """Return the certificate that the issuer has signed, or the reason why there is none yet."""
    found, issuer = observed.certificate_request, request["spec"]["issuerRef"]
    named = f"{issuer['kind']} {issuer['name']} of {FIELD}"
    if found is None:
        return observed.request_obstacle or Obstacle("Waiting", f"the operator requests a certificate from {named}")
    subject = f"CertificateRequest {found['metadata']['name']} for {named}"
    conditions = {each.get("type"): each for each in (found.get("status") or {}).get("conditions") or ()}
    if (refusal := _refusal(conditions, subject)) is not None:
        return refusal
    ready = conditions.get("Ready") or {}
    if ready.get("status") == "True":
        return _certificate(observed, found, subject)
    text = ready.get("message") or ""
    if "not found" in text:
        return Obstacle("IssuerNotFound", f"{subject}: {text}; create what is missing, or correct {FIELD}")
    approved = (conditions.get("Approved") or {}).get("status") == "True"
    waits = text or ("waits for its issuer" if approved else "waits for its approval; does cert-manager run?")
    return Obstacle("Waiting", f"{subject}: {waits}")


def _refusal(conditions: Mapping[str, Mapping[str, str]], subject: str) -> Obstacle | None:
    """Return the obstacle of a request that no issuer will sign any more; None if one may."""
    ready = conditions.get("Ready") or {}
    denied, invalid = (conditions.get(kind) or {} for kind in ("Denied", "InvalidRequest"))
    text = denied.get("message") or invalid.get("message") or ready.get("message") or "no reason is given"
    if denied.get("status") == "True" or ready.get("reason") == "Denied":
        cause = Obstacle("RequestDenied", f"{subject} was denied: {text}; let approvers admit it, or correct {FIELD}")
    elif invalid.get("status") == "True":
        cause = Obstacle("RequestInvalid", f"{subject} is invalid: {text}; name an issuer that signs CAs in {FIELD}")
    elif ready.get("reason") == "Failed":
        cause = Obstacle("RequestFailed", f"{subject} has failed: {text}; correct the issuer, or {FIELD}")
    else:
        return None
    return replace(cause, message=f"{cause.message}; {_AGAIN}")


def _certificate(observed: ReconcileInput, found: Manifest, subject: str) -> IssuedCertificate | Obstacle:
    """Return the certificate in a request that is Ready, if it can be the job's CA."""
    before = observed.before.runtime
    renewed = before if observed.before.phase not in _WITHOUT_PODS else None
    pkcs10 = renewed.issued.request if renewed and renewed.issued else observed.next_request
    status: Mapping[str, Any] = found["status"]
    try:
        signed, above = (base64.b64decode(status.get(part) or "").decode() for part in ("certificate", "ca"))
        certificate = issued_certificate(pkcs10, signed, above, observed.now, renewed.ca if renewed else "")
    except (UnusableError, binascii.Error, UnicodeDecodeError) as error:
        message = f"{subject} has a certificate that cannot be the CA of a job: {error}; correct the issuer or {FIELD}"
        return Obstacle("CertificateUnusable", f"{message}; {_AGAIN}")
    if observed.now < certificate.not_before:
        begins = format_time(certificate.not_before)
        return Obstacle("Waiting", f"{subject}: its certificate begins at {begins}, by the clock of the issuer")
    return certificate


def _renewed(observed: ReconcileInput, status: Status, found: IssuedCertificate) -> Status:
    """Return the status with the renewed certificate of a job that has pods; unchanged for a job without."""
    runtime = status.runtime
    if observed.before.phase in _WITHOUT_PODS or runtime is None or runtime.issued is None:
        return status
    issued = runtime.issued.evolve(
        number=runtime.issued.number + 1, chain=found.chain, not_after=found.not_after, renew_at=found.renew_at
    )
    return status.evolve(runtime=runtime.evolve(ca=found.ca, issued=issued))


def _condition(status: Status, found: IssuedCertificate | Obstacle | None) -> ConditionUpdate | None:
    """Return CertificateIssued; None for a job that never had an issuer."""
    issued = status.runtime.issued if status.runtime is not None else None
    if isinstance(found, Obstacle):
        until = f"; the present certificate ends at {format_time(issued.not_after)}" if issued is not None else ""
        return ConditionUpdate("CertificateIssued", "False", found.reason, f"{found.message}{until}")
    certificate = found or issued
    if certificate is not None:
        end, renewal = format_time(certificate.not_after), format_time(certificate.renew_at)
        message = f"the CA of the job ends at {end}, and is renewed from {renewal} on"
        return ConditionUpdate("CertificateIssued", "True", "Issued", message)
    if any(each.type == "CertificateIssued" for each in status.conditions):
        return ConditionUpdate("CertificateIssued", "False", "NotRequested", "the job requests no certificate now")
    return None


def _changes(
    observed: ReconcileInput, request: Manifest | None, found: IssuedCertificate | Obstacle | None
) -> Iterator[RequestChange]:
    """Yield the changes of CertificateRequests: that of a lost key or of another issuer is deleted first."""
    former = observed.before.certificate_request
    if former and (request is None or request["metadata"]["name"] != former):
        yield DeleteRequest(former)
    if request is None or not isinstance(found, Obstacle):
        return
    if observed.certificate_request is None:
        yield CreateRequest(request)
    elif found.reason in FINAL and _age_s(observed) >= RETRY_S:
        yield DeleteRequest(request["metadata"]["name"])


def _renewals(observed: ReconcileInput, status: Status) -> Iterator[PodPatch]:
    """Yield patches of pods with an older certificate of the CA. A pod without the annotation has another CA."""
    text = status.runtime.issued_ca if status.runtime is not None else ""
    digest = key_digest(text.encode())
    for pod in (*observed.pods, *observed.publishers):
        if text and works(pod) and pod.issued_ca not in {"", digest}:
            yield PodPatch(pod.name, pod.uid, {env.ANNOTATION_ISSUED_CA: text})


def _age_s(observed: ReconcileInput) -> float:
    found = observed.certificate_request
    created = None if found is None else epoch(found["metadata"].get("creationTimestamp"))
    return 0.0 if created is None else observed.now - created


def _is_missing(obstacle: Obstacle) -> bool:
    return obstacle.reason in {"CertManagerMissing", "CertManagerUnavailable", "RequestForbidden", "RequestRefused"}
