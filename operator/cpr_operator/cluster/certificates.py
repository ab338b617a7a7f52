"""Certificates of encrypted jobs: each job's own CA, the operator's identity, and how the operator uses them.

A member signs a certificate of its own with the key of its job's CA. The operator's certificate signs itself. Pods
trust it and their CA, and no other. Certificates end in the year 9999, as RFC 5280 (4.1.2.5) has it for those without
an end: they are replaced with their keys. An issuer may sign the CA instead (`issued_ca`). `cryptography` is imported
when the first one is made.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from functools import lru_cache

from cpr_contract.roster import certificate_name, key_digest
from cpr_operator.cluster.views import PodView

#: Contexts in memory: more than an operator has encrypted jobs. One takes some 20 KiB.
MAX_CONTEXTS = 2048
#: The common name of the operator's certificate.
OPERATOR = "cprjob-operator"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key (PKCS8), both in PEM."""

    certificate: str
    key: str

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 of the certificate in PEM."""
        return key_digest(self.certificate.encode())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.digest})"  # no private key in a log


@dataclass(frozen=True, slots=True)
class PodTLS:
    """A connection to a pod of an encrypted job: the context of its job, and the name in its certificate."""

    context: ssl.SSLContext
    name: str


def authority_name(job_uid: str) -> str:
    """Return the common name of the job's CA."""
    return f"CPRJob {job_uid}"


def new_authority(job_uid: str) -> KeyPair:
    """Make a CA for the job. It signs certificates of processes, and none of further CAs."""
    return _self_signed(authority_name(job_uid), is_client=False)


def new_identity() -> KeyPair:
    """Make a certificate by which pods recognise the operator. It is a CA: OpenSSL trusts only those by themselves."""
    return _self_signed(OPERATOR, is_client=True)


def pod_tls(pod: PodView, ca: str, identity: KeyPair) -> PodTLS:
    """Return the connection to `pod`; `ca` is the certificate of its job's CA (PEM).

    Raises the errors of `client_context`. The pod's labels have its role and index. A spare presents a shard's name
    once it has its roster.
    """
    return PodTLS(client_context(ca, identity), certificate_name(pod.owner_uid, pod.role, max(pod.index, 0)))


@lru_cache(maxsize=MAX_CONTEXTS)
def client_context(ca: str, identity: KeyPair) -> ssl.SSLContext:
    """Return the context of a client that presents `identity` and trusts `ca` (PEM) alone, also if another signed it.

    Raises ssl.SSLError or ValueError if one is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # OpenSSL reads certificates with their keys from files alone. This one is in memory.
    with os.fdopen(os.memfd_create("certificate"), "w", encoding="ascii") as file:
        file.write(identity.key + identity.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def _self_signed(name: str, *, is_client: bool) -> KeyPair:
    """Make a random Ed25519 key with a certificate that it signs."""
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))  # clocks of nodes differ
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if is_client:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    else:
        usage = dict.fromkeys(
            (
                "digital_signature",
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "crl_sign",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, **usage), critical=True)
    form = serialization.Encoding.PEM
    certificate = builder.sign(key, None).public_bytes(form).decode()
    plain = serialization.NoEncryption()
    return KeyPair(certificate, key.private_bytes(form, serialization.PrivateFormat.PKCS8, plain).decode())
