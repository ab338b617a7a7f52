"""The CA of a job and the identity of the operator, in TLS connections with servers on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from ssl import SSLContext

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cpr_contract import env
from cpr_contract.roster import ROSTER_PAGE, ROSTER_SIGNATURE, certificate_name
from cpr_operator.cluster.certificates import (
    OPERATOR,
    KeyPair,
    PodTLS,
    client_context,
    new_authority,
    new_identity,
    pod_tls,
)
from cpr_operator.cluster.pod_reports import ReportFetcher
from cpr_operator.cluster.views import PodView
from support.certificates import leaf, server_context

UID = "0a1b2c3d-0000-4000-8000-000000000000"
NAME = certificate_name(UID, env.ROLE_SHARD, 3)
DEADLINE_S = 30.0


def pod_at(port: int, role: str = env.ROLE_SHARD, index: int = 3) -> PodView:
    return PodView("p", "u", UID, role, index, 1, "Running", 0.0, host="127.0.0.1", port_base=port - 1)


@pytest.fixture
async def fetcher() -> AsyncIterator[ReportFetcher]:
    made = ReportFetcher()
    yield made
    await made.close()


@asynccontextmanager
async def server(context: SSLContext) -> AsyncIterator[tuple[int, list[str]]]:
    """A pod with a report and a page for rosters; its port, and the rosters that were sent."""
    sent: list[str] = []

    async def report(_: web.Request) -> web.Response:
        return web.Response(text="report")

    async def take(request: web.Request) -> web.Response:
        sent.append(await request.text() + request.headers[ROSTER_SIGNATURE])
        return web.Response(status=204)

    app = web.Application()
    app.router.add_get("/status", report)
    app.router.add_post(ROSTER_PAGE, take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1], sent
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: new_authority(UID), f"CPRJob {UID}"), (new_identity, OPERATOR)], ids=["CA", "operator"]
)
def test_certificates_sign_themselves_and_have_no_end(make: Callable[[], KeyPair], name: str) -> None:
    pair = make()
    found = x509.load_pem_x509_certificate(pair.certificate.encode())
    assert found.subject == found.issuer
    assert [each.value for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [name]
    found.verify_directly_issued_by(found)
    assert load_pem_private_key(pair.key.encode(), None).public_key() == found.public_key()
    assert found.not_valid_after_utc == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    age = datetime.now(UTC) - found.not_valid_before_utc
    assert timedelta(minutes=59) < age < timedelta(minutes=61)
    limits = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    digest = x509.SubjectKeyIdentifier.from_public_key(found.public_key())
    assert found.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value == digest
    assert make().key != pair.key
    assert pair.key not in repr(pair)


def test_ca_signs_certificates_alone_and_the_operator_s_is_a_client() -> None:
    authority, identity = (
        x509.load_pem_x509_certificate(pair.certificate.encode()).extensions
        for pair in (new_authority(UID), new_identity())
    )
    usage = authority.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    extended = identity.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(extended) == [ExtendedKeyUsageOID.CLIENT_AUTH]


async def test_pod_of_the_job_answers_the_operator_by_tls(fetcher: ReportFetcher, tmp_path: Path) -> None:
    authority, identity = new_authority(UID), new_identity()
    context = server_context(tmp_path, leaf(authority, NAME), authority.certificate, identity.certificate)
    async with server(context) as (port, sent):
        pod = pod_at(port)
        tls = pod_tls(pod, authority.certificate, identity)
        assert await fetcher.fetch(pod, DEADLINE_S, 100, tls=tls) == b"report"
        await fetcher.send_roster(pod, "roster", "signed", DEADLINE_S, tls)
        assert sent == ["rostersigned"]
        assert await fetcher.fetch(pod, DEADLINE_S, 100) is None, "plain HTTP"


@pytest.mark.parametrize("wrong", ["CA", "role", "index", "job"])
async def test_another_pod_than_the_expected_one_does_not_answer(
    wrong: str, fetcher: ReportFetcher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, identity = new_authority(UID), new_identity()
    names = {
        "role": certificate_name(UID, env.ROLE_TRAINER, 3),
        "index": certificate_name(UID, env.ROLE_SHARD, 2),
        "job": certificate_name(UID.replace("0a", "0b"), env.ROLE_SHARD, 3),
    }
    signer = new_authority(UID) if wrong == "CA" else authority
    async with server(server_context(tmp_path, leaf(signer, names.get(wrong, NAME)))) as (port, sent):
        tls = pod_tls(pod_at(port), authority.certificate, identity)
        for _ in range(2):
            assert await fetcher.fetch(pod_at(port), DEADLINE_S, 100, tls=tls) is None
        assert caplog.text.count("no report over TLS") == 1
        await fetcher.send_roster(pod_at(port), "roster", "signed", DEADLINE_S, tls)
        assert sent == []


@pytest.mark.parametrize("presented", ["nothing", "another operator's", "another job's"])
async def test_pod_answers_no_other_client(presented: str, fetcher: ReportFetcher, tmp_path: Path) -> None:
    authority, identity = new_authority(UID), new_identity()
    context = server_context(tmp_path, leaf(authority, NAME), authority.certificate, identity.certificate)
    async with server(context) as (port, _):
        if presented == "nothing":
            anonymous = SSLContext(client_context(authority.certificate, identity).protocol)
            anonymous.load_verify_locations(cadata=authority.certificate)
            tls = PodTLS(anonymous, NAME)
        else:
            other = new_identity() if presented == "another operator's" else leaf(new_authority("b"), NAME)
            tls = pod_tls(pod_at(port), authority.certificate, other)
        assert await fetcher.fetch(pod_at(port), DEADLINE_S, 100, tls=tls) is None


def test_names_follow_the_role_of_a_pod() -> None:
    authority, identity = new_authority(UID), new_identity()
    pods = [pod_at(80, env.ROLE_TRAINER, 4), pod_at(80, env.ROLE_SPARE, -1), pod_at(80, env.ROLE_PUBLISHER, 0)]
    found = [pod_tls(pod, authority.certificate, identity) for pod in pods]
    assert [each.name for each in found] == [f"trainer-4.{UID}", f"spare-0.{UID}", f"publisher-0.{UID}"]
    assert len({id(each.context) for each in found}) == 1, "a context is made once"


def test_context_needs_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's file system is read-only, and a private key belongs in no file."""
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    client_context(new_authority(UID).certificate, new_identity())


@pytest.mark.parametrize("module", ["cpr_operator.__main__", "cpr_operator.cli.run"])
def test_cryptography_is_not_imported_at_the_start(module: str) -> None:
    # The client of Kubernetes imports the one of Google if it is there, and that one imports cryptography.
    code = f"import sys; sys.modules['google'] = None; import {module}; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
