"""TLS under a CA that an issuer has signed: connections within a job, with another job, and with callers."""

from __future__ import annotations

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509

from cpr_contract import env
from cpr_operator.cluster.certificates import KeyPair, client_context, new_authority, new_identity
from cpr_operator.cluster.issued_ca import signing_request
from cpr_trainer.runtime import Certificates
from cpr_trainer.runtime.certificate import signed_certificate
from support.issuer import Issuer

JOB, OTHER = "job-uid", "other-uid"
DAY_S = 86_400.0


@dataclass
class Clock:
    """The time of the machine, until a test sets another one."""

    begin: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.begin


class IssuedJob:
    """The Secret of a job with an issuer, the file of the annotation, and processes that read both."""

    def __init__(self, folder: Path, uid: str, issuer: Issuer, clock: Clock) -> None:
        self.folder, self.uid, self.issuer, self.clock = folder / uid, uid, issuer, clock
        self.folder.mkdir()
        self.authority, self.operator = new_authority(uid), new_identity()
        self.request = signing_request(self.authority, uid)
        self.annotation = self.folder / "annotation"
        self.ca = self.signed()
        files = {
            env.CA_NAME: self.ca,
            env.CA_KEY_NAME: self.authority.key,
            env.CA_CHAIN_NAME: issuer.intermediate + issuer.root,
            env.OPERATOR_NAME: self.operator.certificate,
        }
        for name, text in files.items():
            (self.folder / name).write_text(text, "ascii")

    def signed(self) -> str:
        return self.issuer.sign(self.request, self.clock() - 60)

    def process(self, role: str) -> Certificates:
        certificates = Certificates(self.folder, self.uid, role, self.clock, self.annotation)
        certificates.identify(role, 0)
        return certificates


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def job(tmp_path: Path, issuer: Issuer, clock: Clock) -> IssuedJob:
    return IssuedJob(tmp_path, JOB, issuer, clock)


def exchange(calling: Certificates, accepting: Certificates) -> bytes:
    """Send five bytes over a new connection to shard 0. Raises OSError of the side that refuses the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 60)
        accepted, _ = listener.accept()
    accepted.settimeout(60)
    with ThreadPoolExecutor(1) as thread:
        trainer, shard = calling.connect(client, "shard", 0), accepting.accept(accepted)
        received = bytearray(5)

        def read() -> None:
            try:
                assert shard.recv_into(received) == len(received)
            finally:
                shard.close()

        reading = thread.submit(read)
        try:
            trainer.sendall(b"hello")
            reading.result()
        except OSError:
            trainer.close()
            reading.result()
            raise
        finally:
            trainer.close()
    return bytes(received)


def test_members_trust_their_ca_without_its_root(job: IssuedJob) -> None:
    assert exchange(job.process("trainer"), job.process("shard")) == b"hello"


def context_of_another_job(folder: Path, issuer: Issuer, clock: Clock, *, calls: bool) -> ssl.SSLContext:
    """One that claims a member's name, and presents the whole chain up to the root. The job alone can refuse it."""
    other = IssuedJob(folder, OTHER, issuer, clock)
    own = signed_certificate(other.ca.encode(), other.authority.key.encode(), f"shard-0.{JOB}", clock(), DAY_S)
    path = folder / "stranger.pem"
    path.write_bytes(own.pem + (other.ca + issuer.intermediate + issuer.root).encode())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if calls else ssl.PROTOCOL_TLS_SERVER)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(path)
    return context


@pytest.mark.parametrize("calls", [True, False])
def test_pod_of_another_job_under_the_same_root_is_refused(
    job: IssuedJob, tmp_path: Path, issuer: Issuer, clock: Clock, *, calls: bool
) -> None:
    context = context_of_another_job(tmp_path, issuer, clock, calls=calls)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 60)
        accepted, _ = listener.accept()
    accepted.settimeout(60)
    mine, theirs = (accepted, client) if calls else (client, accepted)
    member = job.process("shard")
    with ThreadPoolExecutor(1) as thread:
        connection = member.accept(mine) if calls else member.connect(mine, "shard", 0)
        refused = thread.submit(connection.recv_into, bytearray(1))
        with suppress(OSError), context.wrap_socket(theirs, server_side=not calls) as stranger:
            stranger.sendall(b"x")
            stranger.recv(1)
        with pytest.raises(ssl.SSLCertVerificationError):
            refused.result()
        connection.close()


def test_page_refuses_a_pod_of_another_job_under_the_same_root(
    job: IssuedJob, tmp_path: Path, issuer: Issuer, clock: Clock
) -> None:
    context = context_of_another_job(tmp_path, issuer, clock, calls=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        page(job.process("shard"), context)


def test_root_alone_verifies_the_pages_of_a_pod_and_no_member(job: IssuedJob, issuer: Issuer) -> None:
    """A caller from outside trusts the root of the organisation. It gets the chain on the HTTP port."""
    outside = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outside.load_verify_locations(cadata=issuer.root)
    assert page(job.process("shard"), outside) == f"shard-0.{JOB}"
    assert page(job.process("shard"), client_context(job.ca, job.operator)) == f"shard-0.{JOB}"


def page(certificates: Certificates, context: ssl.SSLContext) -> str:
    """Make a handshake with the HTTP port; return the name of the pod."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 60)
        accepted, _ = listener.accept()
    with ThreadPoolExecutor(1) as thread, certificates.accept_http(accepted) as server:
        handshake = thread.submit(server.do_handshake)
        with context.wrap_socket(client, server_hostname=f"shard-0.{JOB}") as connection:
            handshake.result()
            certificate = connection.getpeercert() or {}
    return str(certificate["subjectAltName"][0][1])


def leaf_end(certificates: Certificates) -> float:
    certificates._contexts_in_force()
    return 2 * certificates._sign_again_at - certificates._signed_at


def test_leaves_end_with_the_ca_and_are_signed_again_half_way(job: IssuedJob) -> None:
    end = x509.load_pem_x509_certificate(job.ca.encode()).not_valid_after_utc.timestamp()
    shard = job.process("shard")
    assert leaf_end(shard) == pytest.approx(job.clock.begin + DAY_S, abs=1)
    job.clock.begin = end - DAY_S / 2
    assert leaf_end(shard) == pytest.approx(end, abs=1)
    job.clock.begin = end
    with pytest.raises(ConnectionError, match="the CA of the job has ended"):
        shard._contexts_in_force()


@pytest.mark.parametrize("hashed_by", ["sha256", "sha1"])
def test_certificates_of_old_and_renewed_ca_verify_each_other(job: IssuedJob, hashed_by: str) -> None:
    """The issuer may compute key identifiers anew."""
    members = [job.process("shard") for _ in range(2)]
    assert authority_of(members[0]) == job.ca
    job.issuer.hashed_by = hashed_by
    renewed = job.signed()
    job.annotation.write_text(renewed + job.issuer.intermediate + job.issuer.root, "ascii")
    assert [authority_of(each) for each in members] == [job.ca, renewed]
    assert [exchange(*pair) for pair in (members, members[::-1])] == [b"hello", b"hello"]


def test_process_takes_the_renewed_ca_before_the_old_one_ends(job: IssuedJob) -> None:
    end = x509.load_pem_x509_certificate(job.ca.encode()).not_valid_after_utc.timestamp()
    shard = job.process("shard")
    job.clock.begin = end - 3600
    assert authority_of(shard) == job.ca
    renewed = job.signed()
    job.annotation.write_text(renewed, "ascii")
    assert authority_of(shard) == job.ca
    job.clock.begin = end - 1800
    assert authority_of(shard) == renewed


def authority_of(certificates: Certificates) -> str:
    """The one certificate that members are verified by (PEM)."""
    _, members, _ = certificates._contexts_in_force()
    (trusted,) = members.get_ca_certs(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(trusted)


def test_certificate_of_another_key_in_the_annotation_is_ignored(job: IssuedJob) -> None:
    stranger: KeyPair = new_authority(JOB)
    job.annotation.write_text(job.issuer.sign(signing_request(stranger, JOB), job.clock() - 60), "ascii")
    assert authority_of(job.process("shard")) == job.ca
    job.annotation.write_text("", "ascii")
    assert authority_of(job.process("shard")) == job.ca
