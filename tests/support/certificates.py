"""Certificates that the process of a pod signs with the key of its job's CA, and servers that present them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from cpr_operator.cluster.certificates import KeyPair


def leaf(authority: KeyPair, name: str) -> KeyPair:
    """A certificate for the DNS name, signed by the CA."""
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, Ed25519PrivateKey)
    key = Ed25519PrivateKey.generate()
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer, None)
    )
    form = serialization.Encoding.PEM
    text = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    return KeyPair(certificate.public_bytes(form).decode(), text)


def server_context(folder: Path, pair: KeyPair, *trusted: str) -> ssl.SSLContext:
    """The context of a server with this certificate. With `trusted` (PEM), clients need one that these sign."""
    path = folder / f"{pair.digest}.pem"
    path.write_text(pair.key + pair.certificate, "ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(path)
    if trusted:
        context.load_verify_locations(cadata="".join(trusted))
        context.verify_mode = ssl.CERT_REQUIRED
    return context
