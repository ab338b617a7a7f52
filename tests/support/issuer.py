"""An issuer of cert-manager in memory: it signs CAs below a root, and answers CertificateRequests as the API has it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from cpr_operator.api.base import format_time

LIFETIME = timedelta(days=90)


class Issuer:
    """A root and an intermediate, which signs requests. `hashed_by`: the hash of the key identifiers in certificates.

    Go changed that hash between two releases, so the key identifier of a renewed CA may differ.
    """

    def __init__(self, hashed_by: str = "sha256") -> None:
        self.hashed_by = hashed_by
        self._key, root = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        validity = datetime.now(UTC), datetime.now(UTC) + 4 * LIFETIME
        builder = self._builder("root", root.public_key(), *validity)
        self.root = _signed(builder, "root", root)
        self.intermediate = _signed(self._builder("organisation", self._key.public_key(), *validity), "root", root)

    def sign(
        self, request: str, begin: float, lifetime: timedelta = LIFETIME, *, name: str = "", is_ca: bool = True
    ) -> str:
        """The CA (PEM) for a request. `name`: another common name than requested."""
        csr = x509.load_pem_x509_csr(request.encode())
        assert csr.is_signature_valid
        name = name or str(csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        start = datetime.fromtimestamp(begin, UTC)
        builder = self._builder(name, csr.public_key(), start, start + lifetime, is_ca=is_ca)
        return _signed(builder, "organisation", self._key)

    def answer(self, manifest: Mapping[str, Any], begin: float, lifetime: timedelta = LIFETIME) -> dict[str, Any]:
        """The status of a CertificateRequest that was approved and signed."""
        spec = manifest["spec"]
        assert (spec["isCA"], spec["usages"]) == (True, ["cert sign"])
        signed = self.sign(base64.b64decode(spec["request"]).decode(), begin, lifetime)
        coded = {"certificate": signed + self.intermediate, "ca": self.root}
        return {
            "conditions": [condition("Approved", "cert-manager.io"), condition("Ready", "Issued")],
            **{name: base64.b64encode(text.encode()).decode() for name, text in coded.items()},
        }

    def _builder(
        self, name: str, public: Any, begin: datetime, end: datetime, *, is_ca: bool = True
    ) -> x509.CertificateBuilder:
        bits = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        identifier = x509.SubjectKeyIdentifier(hashlib.new(self.hashed_by, bits).digest()[:20])
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(identifier, critical=False)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signed(builder: x509.CertificateBuilder, by: str, key: ec.EllipticCurvePrivateKey) -> str:
    return builder.issuer_name(_named(by)).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def condition(kind: str, reason: str, message: str = "", status: str = "True") -> dict[str, str]:
    """A condition of a CertificateRequest."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": format_time(0)}
