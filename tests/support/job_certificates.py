"""Certificates of processes of a job, without an operator that made the job's CA."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from cpr_contract import env
from cpr_contract.roster import certificate_name
from cpr_trainer.runtime import Certificates, TlsConnection


def write_ca(folder: Path) -> Path:
    """Write the files of a new CA into a folder."""
    folder.mkdir()
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"CPRJob {folder.name}")])
    ca = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    ).public_bytes(serialization.Encoding.PEM)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / env.CA_NAME).write_bytes(ca)
    (folder / env.CA_KEY_NAME).write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (folder / env.OPERATOR_NAME).write_bytes(ca)
    return folder


def certificates_of(folder: Path, job_uid: str, role: str, index: int) -> Certificates:
    certificates = Certificates(folder, job_uid, role)
    certificates.identify(role, index)
    return certificates


def foreign_certificates(folder: Path, other: Path, job_uid: str, role: str, index: int) -> Certificates:
    """The certificates of a process of another job, which trusts this job's too: only the other side can refuse it."""
    write_ca(other)
    with (other / env.CA_NAME).open("a") as file:
        file.write((folder / env.CA_NAME).read_text())
    return certificates_of(other, job_uid, role, index)


class NoCertificate(Certificates):
    """A caller that trusts the job's CA and has no certificate."""

    def __init__(self, folder: Path, job_uid: str) -> None:
        super().__init__(folder, job_uid, "")
        self._job, self._context = job_uid, ssl.create_default_context(cadata=(folder / env.CA_NAME).read_text())

    def connect(self, connection: socket.socket, role: str, index: int) -> TlsConnection:
        return TlsConnection(connection, self._context, certificate_name(self._job, role, index))


def stranger(kind: str, folder: Path, job_uid: str) -> Certificates | None:
    """The certificates of a process that claims to be trainer 1 of a job, and is not."""
    match kind:
        case "another job":
            return foreign_certificates(folder, folder.with_name("other"), job_uid, "trainer", 1)
        case "another rank":
            return certificates_of(folder, job_uid, "trainer", 2)
        case "no certificate":
            return NoCertificate(folder, job_uid)
    return None


STRANGERS = ("another job", "another rank", "no certificate", "not encrypted")
