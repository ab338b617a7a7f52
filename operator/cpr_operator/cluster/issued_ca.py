"""The CA of a job that an issuer signs: its certificate signing request (PKCS #10), and the certificate in return.

Both are public. Pure, except for the random key that a request is made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpr_operator.cluster.certificates import KeyPair, authority_name

if TYPE_CHECKING:
    from cryptography import x509

#: The least seconds for which a new certificate must be valid: several times the pauses of a renewal that fails.
LEAST_S = 86_400.0
#: The certificate is renewed at this part of its life, and eight hours before its end at the latest (by `LEAST_S`).
RENEWED_AT = 2 / 3


class UnusableError(ValueError):
    """An issued certificate cannot be the CA of the job; the message has the reason."""


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """The certificate of the job's CA, and those above it (PEM). Times are seconds since the epoch."""

    ca: str
    chain: str
    not_before: float
    not_after: float

    @property
    def renew_at(self) -> float:
        """The time from which the next certificate is requested."""
        return self.not_before + RENEWED_AT * (self.not_after - self.not_before)


def signing_request(authority: KeyPair, job_uid: str) -> str:
    """Return the request (PEM) for a certificate of the CA with this key. It is the same at each call."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    key = serialization.load_pem_private_key(authority.key.encode(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("the operator makes Ed25519 keys alone")
    own = x509.load_pem_x509_certificate(authority.certificate.encode()).extensions
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority_name(job_uid))]))
        # cert-manager compares both with spec.isCA and spec.usages.
        .add_extension(own.get_extension_for_class(x509.BasicConstraints).value, critical=True)
        .add_extension(own.get_extension_for_class(x509.KeyUsage).value, critical=True)
        .sign(key, None)
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )


def issued_certificate(request: str, certificate: str, above: str, now: float, former: str = "") -> IssuedCertificate:
    """Check the answer to a request. Raises UnusableError.

    certificate: the job's CA first, then perhaps those that signed it. above: the issuer's own, perhaps empty.
    former: the certificate that this one renews (PEM), which has to have the same name.
    """
    from cryptography import x509  # noqa: PLC0415

    try:
        requested = x509.load_pem_x509_csr(request.encode())
        ca, *others = x509.load_pem_x509_certificates(certificate.encode())
        others += x509.load_pem_x509_certificates(above.encode()) if above.strip() else []
    except ValueError as error:
        raise UnusableError(f"it is no certificate in PEM ({error})") from error
    if ca.public_key() != requested.public_key():
        raise UnusableError("it has another key than the request")
    if former and ca.subject != x509.load_pem_x509_certificate(former.encode()).subject:
        raise UnusableError(f"its name is {ca.subject.rfc4514_string()}, and the one before had another")
    if (objection := _objection(ca)) is not None:
        raise UnusableError(objection)
    not_before, not_after = ca.not_valid_before_utc.timestamp(), ca.not_valid_after_utc.timestamp()
    if not_after - now < LEAST_S:
        raise UnusableError(f"it ends at {ca.not_valid_after_utc:%FT%TZ}, and has to be valid for a day at least")
    return IssuedCertificate(_pem(ca), "".join(_pem(each) for each in dict.fromkeys(others)), not_before, not_after)


def _objection(ca: x509.Certificate) -> str | None:
    """Return why a certificate cannot sign those of processes; None if it can."""
    from cryptography import x509  # noqa: PLC0415

    extensions = {type(each.value): each.value for each in ca.extensions}
    constraints, usage = extensions.get(x509.BasicConstraints), extensions.get(x509.KeyUsage)
    if not ca.subject:
        return "it has no name"
    if not isinstance(constraints, x509.BasicConstraints) or not constraints.ca:
        return "it is no CA"
    if isinstance(usage, x509.KeyUsage) and not usage.key_cert_sign:
        return "it may not sign certificates"
    if x509.NameConstraints in extensions:
        return "its name constraints exclude the names of members"
    return None


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM).decode()
