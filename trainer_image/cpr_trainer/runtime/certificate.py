"""A certificate of one process, signed by the CA of its job, and that CA as an issuer has renewed it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

#: A certificate is valid this long before it is signed: clocks of machines differ.
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key with its certificate (PEM), and the end of it in seconds since the epoch."""

    pem: bytes
    ends_at: float


def renewed_ca(issued: str, ca: str, ca_key: bytes, now: float) -> tuple[str, str] | None:
    """Return the certificate of the CA as it was issued last, and those above it (PEM); None to keep `ca`.

    A writer of the pod's annotations chooses `issued`. It counts only with the key and the name of the CA, and only
    while it is valid, so that it never replaces the CA.
    """
    try:
        renewed, *above = x509.load_pem_x509_certificates(issued.encode())
    except ValueError:  # empty, or written in part
        return None
    key, former = serialization.load_pem_private_key(ca_key, None), x509.load_pem_x509_certificate(ca.encode())
    same = renewed.public_key() == key.public_key() and renewed.subject == former.subject
    if not same or not renewed.not_valid_before_utc.timestamp() <= now < renewed.not_valid_after_utc.timestamp():
        return None
    pem = serialization.Encoding.PEM
    return renewed.public_bytes(pem).decode(), b"".join(each.public_bytes(pem) for each in above).decode()


def signed_certificate(ca: bytes, ca_key: bytes, name: str, now: float, lifetime_s: float) -> Leaf:
    """Return a new key and a certificate with this name, which ends with the CA at the latest. Arguments are PEM.

    `now` is in seconds since the epoch. Raises ValueError for an unusable CA.
    """
    issuer, issuer_key = x509.load_pem_x509_certificate(ca), serialization.load_pem_private_key(ca_key, None)
    if not isinstance(issuer_key, Ed25519PrivateKey):
        raise ValueError("the key of the CA is no Ed25519 key")  # noqa: TRY004 -- what a file holds
    key, today = Ed25519PrivateKey.generate(), datetime.fromtimestamp(now, UTC)
    end = min(today + timedelta(seconds=lifetime_s), issuer.not_valid_after_utc)
    if end <= today:
        raise ValueError(f"the CA of the job has ended at {end:%FT%TZ}: its issuer has not renewed it")
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - _CLOCK_SKEW)
        .not_valid_after(end)
        # Without a subject the alternative name is critical (RFC 5280, 4.2.1.6).
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        # No authority key identifier: an issuer may compute that of a renewed CA in another way.
        .sign(issuer_key, None)
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    own = key.private_bytes(pem, form, serialization.NoEncryption()) + certificate.public_bytes(pem)
    return Leaf(own, end.timestamp())
