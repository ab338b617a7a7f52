"""A certificate of one process, signed by the CA of its job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

#: A certificate is valid this long before it is signed: clocks of machines differ.
_CLOCK_SKEW = timedelta(hours=1)


def signed_certificate(ca: bytes, ca_key: bytes, name: str, now: float, lifetime_s: float) -> bytes:
    """Return a new key and a certificate with this name, as PEM. `ca` and `ca_key` are PEM.

    `now` is in seconds since the epoch. Raises ValueError for an unusable CA.
    """
    issuer, issuer_key = x509.load_pem_x509_certificate(ca), serialization.load_pem_private_key(ca_key, None)
    if not isinstance(issuer_key, Ed25519PrivateKey):
        raise ValueError("the key of the CA is no Ed25519 key")  # noqa: TRY004 -- what a file holds
    key, today = Ed25519PrivateKey.generate(), datetime.fromtimestamp(now, UTC)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - _CLOCK_SKEW)
        .not_valid_after(today + timedelta(seconds=lifetime_s))
        # Without a subject the alternative name is critical (RFC 5280, 4.2.1.6).
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(authority, critical=False)
        .sign(issuer_key, None)
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, serialization.NoEncryption()) + certificate.public_bytes(pem)
