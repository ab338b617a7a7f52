"""Certificates of encrypted jobs: those of their processes, of strangers, and servers that present them."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

from cpr_contract import env
from cpr_contract.roster import certificate_name
from cpr_operator.cluster.certificates import KeyPair, new_authority, new_identity
from cpr_trainer.runtime import Certificates, TlsConnection
from cpr_trainer.runtime.certificate import signed_certificate

STRANGERS = ("another job", "another rank", "no certificate", "not encrypted")


def leaf(authority: KeyPair, name: str) -> KeyPair:
    """A certificate for the DNS name, signed by the CA as a process of a pod does."""
    ca, key = authority.certificate.encode(), authority.key.encode()
    text = signed_certificate(ca, key, name, time.time(), 3600).pem.decode()
    key_text, mark, rest = text.partition("-----BEGIN CERTIFICATE")
    return KeyPair(mark + rest, key_text)


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


def write_ca(folder: Path) -> KeyPair:
    """Write the files of a new CA into a folder, as the operator does into the job's Secret; return the operator's."""
    folder.mkdir(exist_ok=True)
    authority, identity = new_authority(folder.name), new_identity()
    (folder / env.CA_NAME).write_text(authority.certificate)
    (folder / env.CA_KEY_NAME).write_text(authority.key)
    (folder / env.OPERATOR_NAME).write_text(identity.certificate)
    return identity


def certificates_of(folder: Path, job_uid: str, role: str, index: int) -> Certificates:
    certificates = Certificates(folder, job_uid, role)
    certificates.identify(role, index)
    return certificates


def stranger(kind: str, folder: Path, job_uid: str) -> Certificates | None:
    """The certificates of a process that claims to be trainer 1 of a job, and is not."""
    match kind:
        case "another job":
            other = folder.with_name("other")
            write_ca(other)
            # It trusts the job: only the other side can refuse the connection.
            with (other / env.CA_NAME).open("a") as file:
                file.write((folder / env.CA_NAME).read_text())
            return certificates_of(other, job_uid, "trainer", 1)
        case "another rank":
            return certificates_of(folder, job_uid, "trainer", 2)
        case "no certificate":
            return _NoCertificate(folder, job_uid)
    return None


class _NoCertificate(Certificates):
    def __init__(self, folder: Path, job_uid: str) -> None:
        super().__init__(folder, job_uid, "")
        self._job, self._context = job_uid, ssl.create_default_context(cadata=(folder / env.CA_NAME).read_text())

    def connect(self, connection: socket.socket, role: str, index: int) -> TlsConnection:
        return TlsConnection(connection, self._context, certificate_name(self._job, role, index))
