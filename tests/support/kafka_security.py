"""Listeners of a broker with TLS and SASL: their settings, and the certificates of both sides."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USER, PASSWORD = "reader", "of-the-tests"

_SETTINGS = """
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={ca}
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={scram}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Authority:
    """A CA in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "CA of the tests")])
        builder = self._builder(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def sign(self, name: str) -> tuple[bytes, bytes]:
        """Return a key and a certificate (PEM) of this name, for either side of a connection to 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._builder(subject, key).add_extension(addresses, critical=False)
        form = serialization.PrivateFormat.PKCS8
        text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return text, _pem(certificate.sign(self._key, hashes.SHA256()))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        begin = datetime.now(UTC) - timedelta(hours=1)
        return x509.CertificateBuilder(
            self._name, subject, key.public_key(), x509.random_serial_number(), begin, begin + timedelta(days=1)
        )


def write_listeners(folder: Path, authority: Authority) -> None:
    """Give the broker that will start in this folder listeners with TLS: SSL needs a client certificate."""
    (folder / "broker.pem").write_bytes(b"".join(authority.sign("broker")))
    values = {"folder": folder, "ca": authority.ca_file, "user": USER, "password": PASSWORD, "scram": _SCRAM}
    (folder / "secured.properties").write_text(_SETTINGS.format(**values))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
